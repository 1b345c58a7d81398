"""A model behind a real HTTP server that answers late, badly, or not at all."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynolab.endpoint import (
    AnswerCache,
    Answered,
    Endpoint,
    EndpointConfig,
    Failure,
    Request,
    endpoint_from_environment,
)
from dynolab.endpoint.client import FILTERED, any_text
from dynolab.errors import ConfigError, EndpointFailed
from tests.endpoint.server import (
    KEY,
    ChatServer,
    Said,
    chat_server,
    good,
    html,
    said,
    trouble,
)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as started:
        yield started


def endpoint(server: ChatServer, folder: Path, **settings: Any) -> Endpoint:
    usable = settings.pop("usable", any_text)
    quick = {"model": "m", "timeout_seconds": 20, "requests_per_minute": 60_000}
    config = EndpointConfig.model_validate(quick | settings)
    return Endpoint(config, AnswerCache(folder), key=KEY, address=server.address, usable=usable)


def asked(*texts: str) -> list[Request]:
    return [Request(text=text) for text in texts]


def test_answers_come_in_the_order_of_the_requests(server: ChatServer, tmp_path: Path) -> None:
    asking = endpoint(server, tmp_path, concurrency=3, temperature=0.5, max_tokens=9)
    progress: list[tuple[int, int]] = []
    texts = [f"text {n}" for n in range(12)]
    answers = asking.ask(asked(*texts), lambda done, of: progress.append((done, of)))
    assert answers == [Answered(text=text.upper()) for text in texts]
    assert asking.counts == {"requests": 12, "answered": 12, "kept": 0}
    assert progress == [(n, 12) for n in range(13)]
    assert {request.key for request in server.seen} == {f"Bearer {KEY}"}
    body = server.seen[0].body
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 9)


def test_settings_left_to_the_endpoint_are_not_sent(server: ChatServer, tmp_path: Path) -> None:
    endpoint(server, tmp_path, temperature=None, max_tokens=None).ask(asked("a"))
    assert set(server.seen[0].body) == {"model", "messages"}


def test_what_was_answered_is_never_asked_again(server: ChatServer, tmp_path: Path) -> None:
    first = endpoint(server, tmp_path).ask(asked("a", "b", "a"))
    assert sorted(server.texts) == ["a", "b"]
    again = endpoint(server, tmp_path)
    assert again.ask(asked("a", "b", "a")) == first
    assert len(server.seen) == 2 and again.counts == {"kept": 2}


@pytest.mark.parametrize("change", [{"model": "n"}, {"temperature": 0.1}, {"max_tokens": 5}])
def test_other_settings_have_other_answers(
    server: ChatServer, tmp_path: Path, change: dict[str, Any]
) -> None:
    endpoint(server, tmp_path).ask(asked("a"))
    endpoint(server, tmp_path, attempts=2, concurrency=1, requests_per_minute=9).ask(asked("a"))
    assert len(server.seen) == 1
    endpoint(server, tmp_path, **change).ask(asked("a"))
    assert len(server.seen) == 2


def test_samples_of_one_text_are_answers_of_their_own(server: ChatServer, tmp_path: Path) -> None:
    server.answer = lambda seen: good(str(seen.number))
    samples = [Request(text="a", sample=sample) for sample in "xyx"]
    first, second, again = endpoint(server, tmp_path).ask(samples)
    assert {repr(first), repr(second)} == {repr(Answered(text=text)) for text in "01"}
    assert first == again


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_what_may_pass_is_asked_again(server: ChatServer, tmp_path: Path, status: int) -> None:
    server.answer = lambda seen: trouble(status) if seen.number < 2 else good("at last")
    assert endpoint(server, tmp_path).ask(asked("a")) == [Answered(text="at last")]
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    "answer",
    [
        html(),
        trouble(502),
        good(None),
        good(3),
        good(" \n "),
        said(200, {"choices": []}),
        said(200, [1, 2]),
        (200, {"Content-Type": "application/json"}, b"<html>"),
    ],
)
def test_what_stays_without_an_answer_is_given_up_with_its_reason(
    server: ChatServer, tmp_path: Path, answer: Said
) -> None:
    server.answer = lambda seen: answer if seen.text == "bad" else good("fine")
    asking = endpoint(server, tmp_path, attempts=3)
    bad, fine = asking.ask(asked("bad", "fine"))
    assert isinstance(bad, Failure) and bad.reason
    assert fine == Answered(text="fine")
    assert asking.counts["given_up"] == 1
    server.answer = lambda seen: good("recovered")
    later = endpoint(server, tmp_path)
    assert later.ask(asked("bad", "fine")) == [Answered(text="recovered"), fine]
    assert later.counts["requests"] == 1


def test_a_request_that_the_server_refuses_is_not_repeated(
    server: ChatServer, tmp_path: Path
) -> None:
    server.answer = lambda seen: trouble(400, "prompt too long")
    asking = endpoint(server, tmp_path)
    (failed,) = asking.ask(asked("a"))
    assert isinstance(failed, Failure) and "prompt too long" in failed.reason
    assert asking.counts == {"kept": 0, "requests": 1, "given_up": 1}


def test_an_answer_that_will_not_do_is_asked_again(server: ChatServer, tmp_path: Path) -> None:
    server.answer = lambda seen: good(str(seen.number))
    asking = endpoint(server, tmp_path, usable=lambda text: text == "2")
    assert asking.ask(asked("a")) == [Answered(text="2")]
    assert asking.counts["empty"] == 2


def test_an_answer_at_its_longest_says_so(server: ChatServer, tmp_path: Path) -> None:
    server.answer = lambda seen: good("and then", finish="length")
    assert endpoint(server, tmp_path).ask(asked("a")) == [Answered(text="and then", cut=True)]


def test_what_the_model_declines_is_kept_and_not_asked_again(
    server: ChatServer, tmp_path: Path
) -> None:
    answers = {
        "a": good(None, refusal="I must not"),
        "b": good(None, finish="content_filter"),
        "c": good("halfway", finish="content_filter"),
    }
    server.answer = lambda seen: answers[seen.text]
    replies = endpoint(server, tmp_path).ask(asked("a", "b", "c"))
    assert replies == [
        Answered(text="I must not", declined=True),
        Answered(text=FILTERED, declined=True),
        Answered(text="halfway", declined=True),
    ]
    again = endpoint(server, tmp_path)
    assert again.ask(asked("a", "b", "c")) == replies
    assert len(server.seen) == 3 and again.counts == {"kept": 3}


def test_a_system_message_stands_first_and_belongs_to_what_was_asked(
    server: ChatServer, tmp_path: Path
) -> None:
    endpoint(server, tmp_path).ask([Request(text="a", system="be kind"), Request(text="a")])
    roles = sorted([turn["role"] for turn in seen.body["messages"]] for seen in server.seen)
    assert roles == [["system", "user"], ["user"]]


def test_a_server_that_hangs_is_left_after_the_timeout(server: ChatServer, tmp_path: Path) -> None:
    server.answer = lambda seen: None if seen.number == 0 else good("awake")
    asking = endpoint(server, tmp_path, timeout_seconds=0.5)
    assert asking.ask(asked("a")) == [Answered(text="awake")]
    assert len(server.seen) == 2


def test_a_server_that_is_gone_ends_it_and_keeps_what_was_answered(
    server: ChatServer, tmp_path: Path
) -> None:
    server.answer = lambda seen: good("kept") if seen.text == "0" else trouble(503)
    asking = endpoint(server, tmp_path, concurrency=1, attempts=2)
    with pytest.raises(EndpointFailed, match=r"10 requests in a row .* status 503"):
        asking.ask(asked(*map(str, range(40))))
    assert 1 + 10 <= asking.counts["requests"] < 40
    assert endpoint(server, tmp_path).ask(asked("0")) == [Answered(text="kept")]
    server.address = "http://127.0.0.1:9/v1"
    nobody = endpoint(server, tmp_path / "other", attempts=1)
    assert nobody.ask(asked("a")) == [Failure(reason="the endpoint cannot be reached")]


def test_threads_share_the_rate(server: ChatServer, tmp_path: Path) -> None:
    asking = endpoint(server, tmp_path, requests_per_minute=600)
    before = time.monotonic()
    asking.ask(asked(*map(str, range(6))))
    assert time.monotonic() - before >= 0.5


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        (trouble(401, f"Incorrect API key provided: {KEY}"), "OPENAI_API_KEY"),
        (trouble(403), "OPENAI_API_KEY"),
        (trouble(429, "used up", "insufficient_quota"), "OPENAI_API_KEY"),
        (trouble(404, "no such model"), "model"),
        (html(404), "model"),
    ],
)
def test_what_no_request_can_mend_ends_all_at_once(
    server: ChatServer,
    tmp_path: Path,
    answer: Said,
    field: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first request's error is the last that the asking thread sees.
    monkeypatch.setattr("dynolab.endpoint.client.as_completed", lambda sent: reversed(list(sent)))
    server.answer = lambda seen: answer
    with pytest.raises(ConfigError) as raised:
        endpoint(server, tmp_path, concurrency=1).ask(asked(*map(str, range(40))))
    assert raised.value.field == field
    assert set(server.texts) == {"0"}
    assert KEY not in "".join(traceback.format_exception(raised.value))


def test_the_key_stands_nowhere(
    server: ChatServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    echo = trouble(400, f"your key {KEY} may not say that")
    server.answer = lambda seen: echo if seen.text == "bad" else good("fine")
    environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.address}
    asking = endpoint_from_environment(
        EndpointConfig(model="m", requests_per_minute=6000),
        AnswerCache(tmp_path),
        environment=environment,
    )
    bad, fine = asking.ask(asked("bad", "fine"))
    assert isinstance(bad, Failure) and "your key (key) may" in bad.reason
    assert fine == Answered(text="fine")
    assert KEY not in repr((asking.config, asking.counts, bad, capfd.readouterr()))
    assert KEY not in caplog.text
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 1 and KEY.encode() not in files[0].read_bytes()


def test_without_a_key_the_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OPENAI_API_KEY = None: set it in the environment"):
        endpoint_from_environment(EndpointConfig(model="m"), AnswerCache(tmp_path), environment={})


def test_a_broken_cache_file_is_asked_again(
    server: ChatServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint(server, tmp_path).ask(asked("a"))
    (file,) = (path for path in tmp_path.rglob("*.json"))
    file.write_text('{"text": ""}')
    assert endpoint(server, tmp_path).ask(asked("a")) == [Answered(text="A")]
    assert "asked for again" in caplog.text
    assert len(server.seen) == 2


def test_answers_move_to_another_folder_in_one_file(server: ChatServer, tmp_path: Path) -> None:
    first = endpoint(server, tmp_path / "one")
    answers = first.ask(asked("a", "b"))
    AnswerCache(tmp_path / "one").save(first.answered, tmp_path / "answers.jsonl")
    AnswerCache(tmp_path / "two").load(tmp_path / "answers.jsonl")
    assert endpoint(server, tmp_path / "two").ask(asked("a", "b")) == answers
    assert len(server.seen) == 2
    for bad in ('{"key": "../../x", "answer": {"text": "a"}}', '{"key": "a"}', "["):
        (tmp_path / "bad.jsonl").write_text(bad)
        with pytest.raises(ConfigError, match=r"bad\.jsonl line 1"):
            AnswerCache(tmp_path / "two").load(tmp_path / "bad.jsonl")


def test_an_end_in_the_middle_keeps_answers_and_sends_no_more(
    server: ChatServer, tmp_path: Path
) -> None:
    def stop(done: int, of: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    server.answer = lambda seen: good("first") if seen.text in ("0", "1", "2") else None
    asking = endpoint(server, tmp_path, concurrency=2)
    with pytest.raises(KeyboardInterrupt):
        asking.ask(asked(*map(str, range(30))), stop)
    assert len(server.seen) <= 3 + 2  # two may be under way
    server.answer = lambda seen: good("second")
    again = endpoint(server, tmp_path)
    answers = again.ask(asked(*map(str, range(30))))
    assert answers.count(Answered(text="first")) == 3
    assert len(answers) == 30
    # A request that was under way may have come to the server after it spoke again.
    assert 3 <= again.counts["kept"] <= 5
    assert again.counts["kept"] + again.counts["requests"] == 30
