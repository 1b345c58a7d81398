"""Queries a model behind an OpenAI-compatible endpoint, with openai's retries and a cache."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from dynolab.aside import write_text_aside
from dynolab.data.rows import Row, read_rows, write_rows
from dynolab.endpoint.config import Answered, EndpointConfig, Failure, Request
from dynolab.errors import ConfigError, EndpointFailed, to_install

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 10
"""Answers given up in a row after which the endpoint counts as unreachable."""

STOPPED = Failure(reason="stopped before it was sent")

FILTERED = "(taken by the endpoint's content filter)"

Answer = Answered | Failure
OnProgress = Callable[[int, int], None]


def ignore_progress(done: int, of: int) -> None:
    """No-op progress callback."""


def any_text(answer: str) -> bool:
    """Accepts every answer."""
    return True


def endpoint_from_environment(
    config: EndpointConfig,
    cache: AnswerCache,
    *,
    usable: Callable[[str], bool] = any_text,
    environment: Mapping[str, str] = os.environ,
) -> Endpoint:
    """The endpoint at `OPENAI_BASE_URL` (default: OpenAI's), with `OPENAI_API_KEY`.

    **Raises:** `ConfigError` if the key is missing, or openai is not installed.
    """
    key = environment.get("OPENAI_API_KEY")
    if not key:
        raise ConfigError(
            "OPENAI_API_KEY",
            None,
            "set it in the environment; any text if the server at OPENAI_BASE_URL needs none",
        )
    address = environment.get("OPENAI_BASE_URL") or None
    return Endpoint(config, cache, key=key, address=address, usable=usable)


class Endpoint:
    """A model behind an endpoint, queried by concurrent threads.

    **Arguments:**

    - `cache`: stores every answer as soon as it arrives.
    - `key`, `address`: secret and URL; neither appears in any message, count or file.
    - `usable`: whether an answer is acceptable; others count as `empty` and are asked for again.

    `counts` holds `requests` (without openai's own retries), `answered` and among these `declined`,
    `kept` (answers from the cache), `empty` and `given_up`. `answered` holds the keys of all
    answers.
    """

    def __init__(
        self,
        config: EndpointConfig,
        cache: AnswerCache,
        *,
        key: str,
        address: str | None = None,
        usable: Callable[[str], bool] = any_text,
    ) -> None:
        try:
            from openai import OpenAI
        except ImportError as error:
            raise ConfigError(
                "writer", config.model, f"requires openai; {to_install('judge')}"
            ) from error
        self.config, self.counts, self.answered = config, Counter[str](), set[str]()
        self._cache, self._key, self._usable = cache, key, usable
        self._lock, self._next = threading.Lock(), 0.0
        self._client = OpenAI(
            api_key=key,
            base_url=address,
            max_retries=config.attempts - 1,
            timeout=config.timeout_seconds,
        )

    def ask(
        self, requests: Sequence[Request], on_progress: OnProgress = ignore_progress
    ) -> list[Answer]:
        """Answers every request, in order; a `Failure` says why there is no answer.

        Calls `on_progress(done, of)` as requests finish.

        **Raises:** `ConfigError` if no request can be answered (key, model); `EndpointFailed`
        after `FAILURES_IN_A_ROW` failures in a row. Answers until then stay cached.
        """
        keys = [request.key(self.config) for request in requests]
        by_key = dict(zip(keys, requests, strict=True))
        cached = {key: self._cache.get(key) for key in by_key}
        answers: dict[str, Answer] = {key: hit for key, hit in cached.items() if hit is not None}
        self._count("kept", len(answers))
        self.answered |= answers.keys()
        on_progress(len(answers), len(by_key))
        stopped, failures = threading.Event(), 0

        def answer(key: str) -> Answer:
            try:
                return self._answer(key, by_key[key], stopped)
            except BaseException:
                stopped.set()  # before the next request starts
                raise

        pool = ThreadPoolExecutor(self.config.concurrency)
        sent = {pool.submit(answer, key): key for key in by_key if key not in answers}
        try:
            for done in as_completed(sent):
                answers[sent[done]] = given = done.result()
                if isinstance(given, Answered):
                    self.answered.add(sent[done])
                on_progress(len(answers), len(by_key))
                # Requests that another's error stopped do not count: it is still to be read.
                failures = (failures + 1) * (isinstance(given, Failure) and given is not STOPPED)
                if isinstance(given, Failure) and failures == FAILURES_IN_A_ROW:
                    raise EndpointFailed(self.config.model, failures, given.reason)
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
        return [answers[key] for key in keys]

    def _answer(self, key: str, request: Request, stopped: threading.Event) -> Answer:
        for _ in range(self.config.attempts):
            self._keep_pace(stopped)
            if stopped.is_set():
                return STOPPED
            outcome = self._request(request)
            if isinstance(outcome, Failure):
                break
            if outcome.declined or (outcome.text.strip() and self._usable(outcome.text)):
                self._cache.put(key, outcome)
                self._count("answered")
                if outcome.declined:
                    self._count("declined")
                return outcome
            self._count("empty")
            outcome = Failure(reason="the answer holds no text")
        self._count("given_up")
        return outcome

    def _keep_pace(self, stopped: threading.Event) -> None:
        """Waits until a request may start; those of all threads are `60 / per minute` s apart."""
        with self._lock:
            start = max(self._next, time.monotonic())
            self._next = start + 60 / self.config.requests_per_minute
        stopped.wait(start - time.monotonic())

    def _request(self, request: Request) -> Answer:
        import openai

        self._count("requests")
        try:
            completion = self._client.chat.completions.create(
                model=self.config.model,
                messages=request.messages,  # type: ignore[arg-type]
                **self.config.sampling,
            )
        except openai.APITimeoutError:
            return Failure(reason=f"no answer within {self.config.timeout_seconds:g} s")
        except openai.APIConnectionError:
            return Failure(reason="the endpoint cannot be reached")
        except openai.APIStatusError as error:
            message = " ".join(error.message.replace(self._key, "(key)").split())[:200]
            reason = f"status {error.status_code}, {message}"
            # Every other request would fail in the same way. The cause may repeat the key.
            if error.status_code in (401, 403) or error.code == "insufficient_quota":
                raise ConfigError(
                    "OPENAI_API_KEY", "(not shown)", f"the endpoint rejects it: {reason}"
                ) from None
            if error.status_code == 404:
                raise ConfigError(
                    "model",
                    self.config.model,
                    f"no such model at the endpoint, or OPENAI_BASE_URL is wrong: {reason}",
                ) from None
            return Failure(reason=reason)
        except (openai.APIError, ValueError):
            return Failure(reason="the answer is not JSON")
        return _read(completion)

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self.counts[name] += number


def _read(completion: Any) -> Answer:
    """The first choice's text; openai's client also returns replies of other forms."""
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list) or not choices:
        return Failure(reason="the answer is not a chat completion")
    message, ended = (getattr(choices[0], name, None) for name in ("message", "finish_reason"))
    refusal, content = (getattr(message, name, None) for name in ("refusal", "content"))
    if isinstance(refusal, str) and refusal.strip():
        return Answered(text=refusal, declined=True)
    filtered = ended == "content_filter"
    text = content if isinstance(content, str) and content.strip() else FILTERED * filtered
    return Answered.model_construct(text=text, cut=ended == "length", declined=filtered)


class KeptAnswer(Row):
    """An answer with the key of its request."""

    key: str = Field(pattern="^[0-9a-f]{64}$")
    answer: Answered


class AnswerCache:
    """A folder of answers, one file each, written atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Answered | None:
        """The answer stored under a key; None if there is none or it cannot be read."""
        file = self._file(key)
        try:
            return Answered.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            log.warning("cannot read the cached answer %s; it will be asked for again", file.name)
            return None

    def put(self, key: str, answer: Answered) -> None:
        """Stores an answer."""
        write_text_aside(self._file(key), answer.model_dump_json())

    def save(self, keys: Iterable[str], file: Path) -> None:
        """Writes the answers stored under some keys to one file."""
        cached = ((key, self.get(key)) for key in sorted(keys))
        rows = (KeptAnswer(key=key, answer=answer) for key, answer in cached if answer is not None)
        write_rows(file, rows)

    def load(self, file: Path) -> None:
        """Stores the answers of a file that `save` wrote."""
        for row in read_rows(file, KeptAnswer):
            self.put(row.key, row.answer)

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
