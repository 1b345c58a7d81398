"""The comparison of policies as a flow: who is asked what, what is kept, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from dynolab.data.rows import PromptRow
from dynolab.errors import ConfigError
from dynolab.judges import ExactJudge, contests, win_rate
from dynolab.results.judges import Agreement, Judgement, PolicyAnswer, WinRate
from flows.flow import Plan
from flows.judge import FLOW
from tasks.runtime.work import StageResult
from tests.endpoint.server import KEY, ChatServer, Said, Seen, chat_server, good
from tests.flows.analysed import Analysed

WORLD = {"entities": 20, "train_pairs": 12, "heldout_pairs": 6, "corpus_rows": 64}
PATIENT = {"model": "m", "requests_per_minute": 60_000, "attempts": 2, "timeout_seconds": 20}
LLM = {"llm": {"name": "llm", "endpoint": PATIENT}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    with chat_server() as started:
        started.answer = verdict
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", started.address)
        yield started


def verdict(seen: Seen) -> Said:
    return good('{"verdict": "A"}')


SMALL: dict[str, Any] = {
    "name": "small",
    "policies": {"base": {"result": "BASE"}, "sft": {"result": "SFT"}},
    "data": {"world": WORLD},
    "answers": {"sampling": {"max_new_tokens": 12}},
    "judges": {"exact": {"name": "exact"}, "likely": {"name": "log_prob"}},
    "reference": {"result": "SFT"},
}


def planned(lab: Analysed, **changes: Any) -> Plan:
    return lab.plan(FLOW, lab.named(SMALL | changes))


def run(lab: Analysed, **changes: Any) -> dict[str, StageResult]:
    return lab.run_plan(planned(lab, **changes))


def to_run(lab: Analysed, **changes: Any) -> set[str]:
    return lab.to_run(planned(lab, **changes))


def only(**judges: Any) -> dict[str, Any]:
    return {"judges": judges, "reference": None}


@pytest.fixture(scope="module")
def results(analysed: Analysed) -> dict[str, StageResult]:
    return run(analysed)


def test_every_policy_answers_the_same_prompts(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    prompts = analysed.rows(results["prompts"], "heldout.jsonl", PromptRow)
    for name in ("base", "sft"):
        answers = answers_of(analysed, results, name)
        assert [(answer.id, answer.prompt, answer.truth) for answer in answers] == [
            (prompt.id, prompt.prompt, prompt.answer) for prompt in prompts
        ]
        assert all(answer.answer.startswith(" ") and answer.tokens <= 12 for answer in answers)
    assert to_run(analysed) == set()


def answers_of(lab: Analysed, results: dict[str, StageResult], policy: str) -> list[PolicyAnswer]:
    return lab.rows(results[f"answers-{policy}"], "answers.jsonl", PolicyAnswer)


def test_the_stage_gives_the_library_s_verdicts(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    answers = {name: answers_of(analysed, results, name) for name in ("base", "sft")}
    expected = ExactJudge().judge(contests(answers, "sft", "base"))
    judged = results["judge-exact"]
    assert analysed.rows(judged, "judgements.jsonl", Judgement) == expected
    (rate,) = analysed.rows(judged, "win_rates.jsonl", WinRate)
    assert rate.model_dump_json() == win_rate(expected).model_dump_json()
    assert judged.metrics["judge/sft/win_rate"] == rate.rate
    assert (judged.metrics["judge/asked"], judged.metrics["judge/parsed"]) == (12, 12)


def test_the_page_holds_rates_agreement_and_answers(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    page = results["judge-page"]
    (agreed,) = analysed.rows(page, "agreements.jsonl", Agreement)
    assert (agreed.first, agreed.second, agreed.prompts) == ("exact", "likely", 6)
    metrics = analysed.summary(page)["metrics"]
    assert metrics == page.metrics
    assert metrics["agreement/sft/exact-likely"] == agreed.share
    assert metrics["verdicts/asked"] == 24


def test_another_judge_leaves_answers_and_other_judges_as_they_are(
    analysed: Analysed, results: dict[str, StageResult]
) -> None:
    style = {"name": "exact", "rewards": [{"name": "world_style"}]}
    more = SMALL["judges"] | {"style": style}
    assert to_run(analysed, judges=more) == {"judge-style", "judge-page"}
    assert to_run(analysed, baseline="sft") == {"judge-exact", "judge-likely", "judge-page"}


def test_a_model_judges_and_what_it_said_is_not_asked_again(
    analysed: Analysed, server: ChatServer
) -> None:
    found = run(analysed, **only(**LLM))
    rate = analysed.rows(found["judge-llm"], "win_rates.jsonl", WinRate)[0]
    assert (rate.rate, rate.first_share, rate.counts.asked) == (0.5, 1, 12)
    asked = len(server.seen)
    assert found["judge-llm"].metrics["endpoint/answered"] == asked == len(set(server.texts))
    patient = {"llm": {"name": "llm", "endpoint": PATIENT | {"concurrency": 1}}}
    assert to_run(analysed, **only(**patient)) == {"judge-page"}
    again = run(analysed, **only(other=LLM["llm"]))
    assert len(server.seen) == asked and again["judge-other"].metrics["endpoint/kept"] == asked
    home = analysed.platform.settings.home
    for file in home.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": {"one": {"model": "x"}}}, "policies = {'one': {'model': 'x'}}: "),
        ({"baseline": "other"}, "baseline = 'other': choose one of base, sft"),
        ({"data": None}, "data = None: give data, or the study"),
        ({"answers": {"split": "test"}}, "answers.split = 'test': Input should be 'train' or"),
        ({"reference": None}, "reference = None: judge likely needs one"),
        ({"judges": {"exact": {"name": "exact"}}}, "no judge uses it"),
        ({"judges": {"x": {"name": "exact", "rewards": [{"name": "guess"}]}}}, "rewards = 'guess'"),
        ({"judges": {"x": {"name": "guess"}}}, "choose one of 'exact', 'log_prob', 'llm'"),
        ({"judges": {"x": {"name": "llm"}}}, "judges.x.endpoint"),
        (
            {"judges": {"x": {"name": "llm", "endpoint": {"model": "m", "api_key": "k"}}}},
            "judges.x.endpoint.api_key = 'k': there is no such setting",
        ),
        ({"judges": {"likely": {"name": "log_prob", "tie_nats": -1}}}, "judges.likely.tie_nats"),
        (
            {"policies": {"one": {"result": "sft", "model": "y"}, "two": {"model": "x"}}},
            "policies.one = 'sft': give either result",
        ),
        (
            {"policies": SMALL["policies"] | {"lost": {"result": "sft/0000"}}},
            "policies.lost.result = 'sft/0000'",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_first(
    analysed: Analysed, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        planned(analysed, **changes)
