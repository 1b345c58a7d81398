"""Stage `probe-set`: a study's rows with a probe set of any kinds, in place of the data's own."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from dynolab.endpoint.config import PATIENCE
from dynolab.probes.making.probe_set import ProbeSetConfig
from tasks.endpoint import StageEndpoint
from tasks.runtime.stage import Stage
from tasks.runtime.track.tables import log_tables
from tasks.runtime.work import Work

if TYPE_CHECKING:
    from dynolab.probes.making.policy import Policy

ROWS = ("train.jsonl", "heldout.jsonl")


def make_probe_set(work: Work[ProbeSetConfig]) -> dict[str, float]:
    """Reads input `data`, and `model`, the untrained policy, where there is one.

    Results: `probes.jsonl`, the rows; `missing.jsonl`, the rows that could not be made, with the
    reason; and the data's `train.jsonl` and `heldout.jsonl`, so that other stages read this
    result as they read the data stage's. To watch the rows in another study of the same data
    settings and seed, name the file there as `data.probes`.

    The writer's answers are kept as `StageEndpoint` keeps them.
    """
    from dynolab.data.rows import Example, ProbeRow, read_rows, write_rows
    from dynolab.probes.making.probe_set import build_probe_set
    from dynolab.probes.making.written import has_text

    began, config, data = time.monotonic(), work.config, work.input_folder("data")
    endpoint = StageEndpoint(work, config.writer if config.writer_kinds else None, usable=has_text)
    with endpoint.shown():
        try:
            built = build_probe_set(
                config,
                *(list(read_rows(data / name, Example)) for name in ROWS),
                given=list(read_rows(data / "probes.jsonl", ProbeRow)),
                policy=_policy(work),
                endpoint=endpoint.endpoint,
                on_progress=endpoint.on_progress,
            )
        finally:
            spent = endpoint.spent("writer")
            work.tracker.log_metrics(spent, 0)
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
    from dynolab.probes.making.policy import Policy
    from models.language import load_language_model, load_tokenizer

    source, folder = work.inputs["model"], work.input_folder("model", "model")
    tokenizer = load_tokenizer(folder)
    model = load_language_model(folder, tokenizer=tokenizer, device=device())
    return Policy(model, tokenizer, f"{source.stage}/{source.key[:12]}")


# How patiently a writer is asked decides when it answers, not what.
PROBE_SET = Stage(
    "probe-set",
    1,
    make_probe_set,
    operational=frozenset(f"writer.{name}" for name in PATIENCE),
)
