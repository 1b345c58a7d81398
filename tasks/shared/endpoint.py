"""For stages that ask a model behind an endpoint: caches answers and resumes."""

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
KEPT = "answers.jsonl"


class StageEndpoint:
    """The endpoint of a stage, which keeps its answers and shows how many are there.

    Answers are kept in the home's cache by what was asked, each as soon as it is there, and until
    the stage's result is committed now and then in the store: a run that was ended goes on where
    it stopped, on another machine, too, and pays nothing twice.

    **Arguments:** `config`: None where nothing is to be asked; `endpoint` is then None.
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
            self._cache.load(state[1] / KEPT)
        self.endpoint = endpoint_from_environment(config, self._cache, usable=usable)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The stage's progress. What was answered is stored where the block ends early."""
        with self._work.shown(PROGRESS if self.endpoint else None) as progress:
            self._progress = progress
            try:
                yield
            except BaseException:
                self._store()
                raise

    def on_progress(self, done: int, of: int) -> None:
        """Hears how many answers are there."""
        assert self._progress is not None, "answers come while the stage is shown"
        self._progress.update(PROGRESS * done // max(of, 1), f"{done} of {of} answers")
        if self._stored is None:  # those that the last run left
            self._stored = done
        if done >= self._stored + KEEP_EVERY:
            self._store()
            self._stored = done

    def spent(self, name: str) -> dict[str, float]:
        """What the endpoint was asked and what it did, as `<name>/<count>`."""
        counts = {} if self.endpoint is None else self.endpoint.counts
        return {f"{name}/{what}": float(count) for what, count in sorted(counts.items())}

    def _store(self) -> None:
        """Commits the answers so far as a state to go on from."""
        if self.endpoint is None or not self.endpoint.counts["answered"]:
            return
        folder = self._work.scratch / "kept"
        folder.mkdir(exist_ok=True)
        self._cache.save(self.endpoint.answered, folder / KEPT)
        self._work.commit_resume(len(self.endpoint.answered), folder, {})
