"""Stage `resampled`: the same pairs with rejected answers sampled once from a model."""

from __future__ import annotations

import shutil
import time

from dynolab.rollouts.sample import SampleConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work


def resample(work: Work[SampleConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`.

    Results: `train.jsonl` with sampled rejected answers and the unchanged `probes.jsonl`: a
    training stage reads them as it reads the data stage's.
    """
    from dynolab.data.resampled import with_rejected
    from dynolab.data.rows import Example, read_rows, write_rows
    from dynolab.distributed import device
    from dynolab.rollouts.sample import sample_responses
    from models.language import load_language_model, load_tokenizer

    began, data = time.monotonic(), work.input_folder("data")
    folder = work.input_folder("model", "model")
    examples = list(read_rows(data / "train.jsonl", Example))
    with work.shown():
        sampled = sample_responses(
            load_language_model(folder, device=device()),
            load_tokenizer(folder),
            [example.prompt for example in examples],
            work.config,
        )
        rows = with_rejected(examples, [one.text for one in sampled])
        write_rows(work.output / "train.jsonl", rows)
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
    return {
        "finished": sum(one.finished for one in sampled) / len(sampled),
        "seconds": time.monotonic() - began,
    }


RESAMPLED = Stage("resampled", 1, resample)
