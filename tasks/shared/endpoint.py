"""Caches answers for stages that query a model behind an endpoint, and resumes from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dynolab.endpoint import AnswerCache, Endpoint, EndpointConfig, endpoint_from_environment
from dynolab.endpoint.client import any_text
from tasks.runtime.track.progress import StageProgress
from tasks.runtime.work import Work

PROGRESS = 100  # per cent of the answers
KEEP_EVERY = 200  # answers
ANSWERS_FILE = "answers.jsonl"


class StageEndpoint:
    """The endpoint of a stage, with a cache of its answers and a progress display.

    Writes each answer to the home's cache as it arrives, keyed by its request. Until the stage's
    result is committed, also commits the answers to the store every `KEEP_EVERY` answers, so that
    an interrupted run resumes, on another machine too, and no request is paid for twice.

    **Arguments:** `config`: None if the stage sends no requests; `endpoint` is then None.
    """

    def __init__(
        self,
        work: Work[Any],
        config: EndpointConfig | None,
        usable: Callable[[str], bool] = any_text,
    ) -> None:
        self._work, self._cache = work, AnswerCache(work.cache / "answers")
        self._progress: StageProgress | None = None
        self._stored: int | None = None
        self.endpoint: Endpoint | None = None
        if config is None:
            return
        if (state := work.newest_resume()) is not None:
            self._cache.load(state[1] / ANSWERS_FILE)
        self.endpoint = endpoint_from_environment(config, self._cache, usable=usable)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the stage's progress. Stores the answers so far if the block raises."""
        with self._work.shown(PROGRESS if self.endpoint else None) as progress:
            self._progress = progress
            try:
                yield
            except BaseException:
                self._store()
                raise

    def on_progress(self, done: int, of: int) -> None:
        """Shows that `done` of `of` answers have arrived."""
        assert self._progress is not None, "on_progress is called inside shown()"
        self._progress.update(PROGRESS * done // max(of, 1), f"{done} of {of} answers")
        if self._stored is None:  # answers of an earlier run
            self._stored = done
        if done >= self._stored + KEEP_EVERY:
            self._store()
            self._stored = done

    def spent(self, name: str) -> dict[str, float]:
        """The endpoint's counts (requests, answers, failures, …), as `<name>/<count>`."""
        counts = {} if self.endpoint is None else self.endpoint.counts
        return {f"{name}/{event}": float(count) for event, count in sorted(counts.items())}

    def _store(self) -> None:
        """Commits the answers so far as a resume state."""
        if self.endpoint is None or not self.endpoint.counts["answered"]:
            return
        folder = self._work.scratch / "kept"
        folder.mkdir(exist_ok=True)
        self._cache.save(self.endpoint.answered, folder / ANSWERS_FILE)
        self._work.commit_resume(len(self.endpoint.answered), folder)
