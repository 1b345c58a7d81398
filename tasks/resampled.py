"""Stage `resampled`: the same pairs with rejected answers sampled once from a model."""

from __future__ import annotations

import shutil

from dynolab.data.rows import Example, read_rows, with_rejected
from dynolab.rollouts.sample import SampleConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.policies import load_model, responses


def resample(work: Work[SampleConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`.

    Results: `train.jsonl` with sampled rejected answers, and the unchanged `probes.jsonl`. A
    training stage reads this result in place of the data stage's.
    """
    data = work.input_folder("data")
    examples = list(read_rows(data / "train.jsonl", Example))
    with work.shown():
        model, tokenizer = load_model(work.input_folder("model", "model"))
        sampled = responses(model, tokenizer, examples, work.config)
        work.write_tables(train=with_rejected(examples, [row.text for row in sampled]))
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
    return {
        "finished": sum(row.finished for row in sampled) / len(sampled),
        "seconds": work.seconds,
    }


RESAMPLED = Stage("resampled", 2, resample)
