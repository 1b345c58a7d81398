"""Stage `probe-set`: a study's rows with a probe set of chosen kinds in place of the data's."""

from __future__ import annotations

import shutil

from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.endpoint.config import PATIENCE
from dynolab.probes.making.policy import Policy
from dynolab.probes.making.probe_set import ProbeSetConfig, build_probe_set
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.endpoint import StageEndpoint
from tasks.shared.policies import load_model

ROWS = ("train.jsonl", "heldout.jsonl")


def make_probe_set(work: Work[ProbeSetConfig]) -> dict[str, float]:
    """Reads inputs `data` and, if there is one, `model`, the untrained policy.

    Results: `probes.jsonl`, the rows; `missing.jsonl`, the rows that could not be made, with the
    reason; and the data's `train.jsonl` and `heldout.jsonl`, so that other stages can read this
    result in place of the data stage's. To watch the rows in another study with the same data
    settings and seed, set its `data.probes` to the file.

    `StageEndpoint` caches the writer's answers.
    """
    from dynolab.probes.making.written import has_text

    config, data = work.config, work.input_folder("data")
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
        work.write_tables(probes=built.rows, missing=built.missing)
        for name in ROWS:
            shutil.copyfile(data / name, work.output / name)
    work.log_tables(missing=built.missing)
    return {**built.counts, **spent, "seconds": work.seconds}


def _policy(work: Work[ProbeSetConfig]) -> Policy | None:
    if "model" not in work.inputs:
        return None

    source = work.inputs["model"]
    model, tokenizer = load_model(work.input_folder("model", "model"))
    return Policy(model, tokenizer, f"{source.stage}/{source.key[:12]}")


# Timeouts and retries change when a writer answers, not what it answers.
PROBE_SET = Stage(
    "probe-set",
    2,
    make_probe_set,
    operational=frozenset(f"writer.{name}" for name in PATIENCE),
)
