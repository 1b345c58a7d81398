"""Stage `probe-set`: a study's rows with a probe set of any kinds, in place of the data's own."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.endpoint import AnswerCache, Endpoint, endpoint_from_environment
from dynolab.endpoint.config import PATIENCE
from dynolab.probes.probe_set import ProbeSetConfig
from tasks.runtime.progress import StageProgress
from tasks.runtime.stage import Stage
from tasks.runtime.tables import log_tables
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.probes.policy import Policy

ROWS = ("train.jsonl", "heldout.jsonl")
PROGRESS = 100  # per cent of the writer's answers
KEEP_EVERY = 200  # answers
KEPT = "answers.jsonl"


def make_probe_set(work: Work[ProbeSetConfig]) -> dict[str, float]:
    """Reads input `data`, and `model`, the untrained policy, where there is one.

    Results: `probes.jsonl`, the rows; `missing.jsonl`, the rows that could not be made, with the
    reason; and the data's `train.jsonl` and `heldout.jsonl`, so that other stages read this
    result as they read the data stage's. To watch the rows in another study of the same data
    settings and seed, name the file there as `data.probes`.

    The writer's answers are kept in the home's cache by what was asked, each as soon as it is
    there, and until this result is committed now and then in the store: a run that was ended goes
    on where it stopped, on another machine, too, and pays nothing twice.
    """
    from dynolab.data.rows import Example, ProbeRow, read_rows, write_rows
    from dynolab.probes.probe_set import build_probe_set

    began, data = time.monotonic(), work.input_folder("data")
    cache = AnswerCache(work.cache / "answers")
    endpoint = _writer(work, cache)
    with work.shown(PROGRESS if endpoint else None) as progress:
        try:
            built = build_probe_set(
                work.config,
                *(list(read_rows(data / name, Example)) for name in ROWS),
                given=list(read_rows(data / "probes.jsonl", ProbeRow)),
                policy=_policy(work),
                endpoint=endpoint,
                told=_Teller(work, cache, endpoint, progress),
            )
        except BaseException:
            _keep(work, cache, endpoint)
            raise
        finally:
            spent = _spent(endpoint)
            work.tracker.metrics(0, spent)
        write_rows(work.output / "probes.jsonl", built.rows)
        write_rows(work.output / "missing.jsonl", built.missing)
        for name in ROWS:
            shutil.copyfile(data / name, work.output / name)
    log_tables(work.tracker, {"missing": built.missing}, work.scratch)
    return {**built.counts, **spent, "seconds": time.monotonic() - began}


def _policy(work: Work[ProbeSetConfig]) -> Policy | None:
    if "model" not in work.inputs:
        return None
    from dynolab.distributed import device
    from dynolab.probes.policy import Policy
    from models.language import load_language_model, load_tokenizer

    source, folder = work.inputs["model"], work.input_folder("model", "model")
    tokenizer = load_tokenizer(folder)
    model = load_language_model(folder, tokenizer=tokenizer, device=device())
    return Policy(model, tokenizer, f"{source.stage}/{source.key[:12]}")


def _writer(work: Work[ProbeSetConfig], cache: AnswerCache) -> Endpoint | None:
    if work.config.writer is None or not work.config.writer_kinds:
        return None
    from dynolab.probes.written import has_text

    if (state := work.newest_resume()) is not None:
        cache.load(state[1] / KEPT)
    return endpoint_from_environment(work.config.writer, cache, usable=has_text)


@dataclass
class _Teller:
    """Shows how many answers are there, and keeps them in the store every so often."""

    work: Work[ProbeSetConfig]
    cache: AnswerCache
    endpoint: Endpoint | None
    progress: StageProgress
    kept: int | None = None

    def __call__(self, done: int, of: int) -> None:
        self.progress.update(PROGRESS * done // max(of, 1), f"{done} of {of} answers")
        if self.kept is None:  # those that the last run left
            self.kept = done
        if done >= self.kept + KEEP_EVERY:
            _keep(self.work, self.cache, self.endpoint)
            self.kept = done


def _keep(work: Work[ProbeSetConfig], cache: AnswerCache, endpoint: Endpoint | None) -> None:
    """Commits the answers so far as a state to go on from."""
    if endpoint is None or not endpoint.counts["answered"]:
        return
    folder = work.scratch / "kept"
    folder.mkdir(exist_ok=True)
    cache.save(endpoint.answered, folder / KEPT)
    work.commit_resume(len(endpoint.answered), folder, {})


def _spent(endpoint: Endpoint | None) -> dict[str, float]:
    """What the endpoint was asked and what it did."""
    counts = {} if endpoint is None else endpoint.counts
    return {f"writer/{name}": float(count) for name, count in sorted(counts.items())}


# How patiently a writer is asked decides when it answers, not what.
PROBE_SET = Stage(
    "probe-set", 1, make_probe_set,
    operational=frozenset(f"writer.{name}" for name in PATIENCE),
)  # fmt: skip
