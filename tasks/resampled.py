"""Stage `resampled`: the same pairs with rejected answers sampled once from a model."""

from __future__ import annotations

import shutil

from dynolab.data.rows import Example, read_rows, with_rejected
from dynolab.rollouts.sample import SampleConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.policies import load_model


def resample(work: Work[SampleConfig]) -> dict[str, float]:
    """Reads inputs `data` and `model`.

    Results: `train.jsonl` with sampled rejected answers, and the unchanged `probes.jsonl`. A
    training stage reads this result in place of the data stage's.
    """
    from dynolab.rollouts.sample import sample_responses

    data = work.input_folder("data")
    examples = list(read_rows(data / "train.jsonl", Example))
    with work.shown():
        model, tokenizer = load_model(work.input_folder("model", "model"))
        prompts, turns = [row.prompt for row in examples], [row.turn for row in examples]
        responses = sample_responses(model, tokenizer, prompts, work.config, turns)
        work.write_tables(train=with_rejected(examples, [row.text for row in responses]))
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
    return {
        "finished": sum(row.finished for row in responses) / len(responses),
        "seconds": work.seconds,
    }


RESAMPLED = Stage("resampled", 2, resample)
