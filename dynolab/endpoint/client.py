"""Queries a model behind an OpenAI-compatible endpoint, with retries and a cache.

The retries are our own: those of openai's client share no rate limit between threads, count
nothing, wait two minutes at most, and accept empty answers and replies that are not completions.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from dynolab.endpoint.answers import AnswerCache
from dynolab.endpoint.config import Answered, EndpointConfig, Failure, Request
from dynolab.endpoint.pace import Clock, Pace
from dynolab.endpoint.trouble import LONGEST_WAIT, Trouble, status_trouble
from dynolab.errors import ConfigError, EndpointFailed, to_install

FAILURES_IN_A_ROW = 10
"""Answers given up in a row after which the endpoint counts as unreachable."""

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
    - `usable`: whether an answer is acceptable; others count as `empty` and are retried.
    - `clock`: replaces this machine's time.

    `counts` holds `requests`, `answered` and among these `declined`, `kept` (answers from the
    cache), `given_up`, and failed requests by name (`rate_limited`, `server_errors`, `refused`,
    `timeouts`, `unreachable`, `not_json`, `empty`). `answered` holds the keys of all answers.
    """

    def __init__(
        self,
        config: EndpointConfig,
        cache: AnswerCache,
        *,
        key: str,
        address: str | None = None,
        usable: Callable[[str], bool] = any_text,
        clock: Clock | None = None,
    ) -> None:
        try:
            from openai import OpenAI
        except ImportError as error:
            raise ConfigError(
                "writer", config.model, f"requires openai; {to_install('judge')}"
            ) from error
        self.config, self.counts, self.answered = config, Counter[str](), set[str]()
        self._cache, self._key, self._usable = cache, key, usable
        self._clock = clock or Clock()
        self._pace = Pace(config.requests_per_minute, self._clock)
        self._lock = threading.Lock()
        self._client = OpenAI(
            api_key=key, base_url=address, max_retries=0, timeout=config.timeout_seconds
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
        wanted = dict(zip(keys, requests, strict=True))
        cached = {key: self._cache.get(key) for key in wanted}
        answers: dict[str, Answer] = {key: hit for key, hit in cached.items() if hit is not None}
        self._count("kept", len(answers))
        self.answered |= answers.keys()
        on_progress(len(answers), len(wanted))
        failures = 0
        for key, answer in self._answers({k: v for k, v in wanted.items() if k not in answers}):
            answers[key] = answer
            if isinstance(answer, Answered):
                self.answered.add(key)
            on_progress(len(answers), len(wanted))
            failures = failures + 1 if isinstance(answer, Failure) else 0
            if isinstance(answer, Failure) and failures == FAILURES_IN_A_ROW:
                raise EndpointFailed(self.config.model, failures, answer.reason)
        return [answers[key] for key in keys]

    def _answers(self, wanted: Mapping[str, Request]) -> Iterator[tuple[str, Answer]]:
        """Yields answers as they arrive. Daemon threads: a hung request does not block exit."""
        todo: SimpleQueue[tuple[str, Request]] = SimpleQueue()
        done: SimpleQueue[tuple[str, Answer | BaseException]] = SimpleQueue()
        for item in wanted.items():
            todo.put(item)

        def work() -> None:
            while not self._clock.stopped:
                try:
                    key, request = todo.get_nowait()
                except Empty:
                    return
                try:
                    done.put((key, self._answer(key, request)))
                except BaseException as error:  # raised again in the consuming thread
                    self._clock.stop()
                    done.put((key, error))

        for _ in range(min(self.config.concurrency, len(wanted))):
            threading.Thread(target=work, daemon=True).start()
        try:
            for _ in wanted:
                key, answer = done.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield key, answer
        except BaseException:
            self._clock.stop()
            raise

    def _answer(self, key: str, request: Request) -> Answer:
        reason = "stopped before it was sent"
        for attempt in range(1, self.config.attempts + 1):
            self._pace.wait()
            if self._clock.stopped:
                return Failure(reason=reason)
            outcome = self._request(request)
            if isinstance(outcome, Answered):
                self._cache.put(key, outcome)
                self._count("answered")
                return outcome
            self._count(outcome.name)
            reason = outcome.reason
            if not outcome.retryable:
                break
            if attempt < self.config.attempts:
                self._back_off(outcome, attempt)
        self._count("given_up")
        return Failure(reason=reason)

    def _back_off(self, trouble: Trouble, attempt: int) -> None:
        """Waits as long as the server asks, or backs off exponentially.

        All threads wait if the server names a time or limits the rate."""
        backoff = min(2.0 ** (attempt - 1) * random.uniform(0.75, 1.25), LONGEST_WAIT)
        seconds = backoff if trouble.retry_after is None else trouble.retry_after
        if trouble.rate_limited or trouble.retry_after is not None:
            self._pace.hold(seconds)
        else:
            self._clock.sleep(seconds)

    def _request(self, request: Request) -> Answered | Trouble:
        import openai

        self._count("requests")
        try:
            completion = self._client.chat.completions.create(
                model=self.config.model,
                messages=request.messages,  # type: ignore[arg-type]
                **self.config.sampling,
            )
        except openai.APITimeoutError:
            return Trouble("timeouts", f"no answer within {self.config.timeout_seconds:g} s")
        except openai.APIConnectionError:
            return Trouble("unreachable", "the endpoint cannot be reached")
        except openai.APIStatusError as error:
            reason = f"status {error.status_code}, {self._clean(error.message)}"
            return status_trouble(error, self.config.model, reason)
        except (openai.APIError, ValueError):
            return Trouble("not_json", "the answer is not JSON")
        outcome = _parse_completion(completion)
        if isinstance(outcome, Trouble):
            return outcome
        if outcome.declined:
            self._count("declined")
        elif not self._usable(outcome.text):
            return Trouble("empty", "the answer holds no text")
        return outcome

    def _clean(self, message: str) -> str:
        """The start of a server's message, with the key redacted in case the server repeats it."""
        return " ".join(message.replace(self._key, "(key)").split())[:200]

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self.counts[name] += number


def _parse_completion(completion: Any) -> Answered | Trouble:
    """Reads the first choice's text; openai's client also returns replies of other forms."""
    choices = getattr(completion, "choices", None)
    if not isinstance(choices, list) or not choices:
        return Trouble("not_json", "the answer is not a chat completion")
    message, ended = (getattr(choices[0], name, None) for name in ("message", "finish_reason"))
    refusal, content = (getattr(message, name, None) for name in ("refusal", "content"))
    if isinstance(refusal, str) and refusal.strip():
        return Answered(text=refusal, declined=True)
    filtered, empty = ended == "content_filter", Trouble("empty", "the answer is empty")
    if not isinstance(content, str) or not content.strip():
        return Answered(text=FILTERED, declined=True) if filtered else empty
    return Answered(text=content, cut=ended == "length", declined=filtered)
