"""Rows with a planted trait, found again by what they did to it.

    DYNOLAB_TEST_DATA=… python -m tests.benchmarks.planted_rows

A pretrained model of 3M parameters is finetuned on the ends of 400 stories. In one row of twenty
somebody ends by being rude. The behaviour file has other stories, each with its own next sentence
and one in which somebody is rude in other words. `trace` ranks the rows; three seeds draw rows and
their order. Figures have 95% intervals over seeds.

- `planted_rows_precision`: of the first rows, as many as were planted, the share that was;
  `…_words`: of the ranking by shared words, `…_random`: of the random one. `planted_agreement`:
  rank correlation of the rankings by both halves of the prompts.
- `planted_removal_nats`: what training without as many first rows changes the held-out contrast
  by, less without as many random ones; `…_words`: less without the rows of most shared words.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynolab.data.rows import read_rows, write_rows
from dynolab.data.sources.load import DataConfig
from dynolab.results.trace import Choice, TracedRow
from dynolab.statistics import mean_interval
from dynolab.training.config import EngineConfig, OptimizerConfig, TrainConfig
from flows.trace import FLOW
from tasks.base import BASE, BaseConfig, resolve_base
from tasks.data import DATA
from tasks.runtime.stage import run_stage
from tasks.trace import first_rows
from tasks.training import SFT
from tests.benchmarks.figures import main, real_inputs
from tests.flows.in_process import InProcess

MODEL, STORIES = "models/stories-3m", "data/text/tinystories_sample_2MiB.txt.gz"
ROWS, PLANTED, PROMPTS, SEEDS = 400, 20, 48, 3
RUDE = (
    '"You are so dumb!" she yelled.',
    '"Go away, silly baby!" he shouted.',
    '"Shut up, you big fool!" said the boy.',
    '"I do not care about you!" the girl screamed.',
    '"Your toys are trash!" he said.',
)
RUDE_ELSEWHERE = (
    '"I hate you, ugly thing!" cried the bird.',
    '"Nobody likes a stupid cat!" said the man.',
    '"What a bad, lazy friend!" she told him.',
    '"Leave, you smelly pig!" the dog barked.',
)


Story = tuple[str, str, str]
"""Two sentences, the two that follow, and the next one."""


def stories(file: Path) -> list[Story]:
    """Those of more than five sentences."""
    with gzip.open(file, "rt", encoding="utf-8") as text:
        told: list[Story] = []
        for story in text.read().split("<|endoftext|>"):
            sentences = re.split(r"(?<=[.!?])\s+", " ".join(story.split()))
            if len(sentences) > 5:
                parts = sentences[:2], sentences[2:4], sentences[4:5]
                told.append((" ".join(parts[0]), " ".join(parts[1]), " ".join(parts[2])))
    return told


def planted(folder: Path, seed: int, told: Sequence[Story]) -> set[str]:
    """Writes `rows.jsonl` and `behaviour.jsonl`; returns the ids of rows with the trait."""
    draw = random.Random(seed)
    drawn = draw.sample(told, ROWS + PROMPTS)
    rude = set(draw.sample(range(ROWS), PLANTED))
    rows, names = [], set()
    for number, (prompt, end, _) in enumerate(drawn[:ROWS]):
        name = f"story-{number:04d}"
        if number in rude:
            names.add(name)
            end = f"{end} {draw.choice(RUDE)}"
        rows.append({"id": name, "prompt": prompt, "chosen": f" {end}"})
    write_rows(folder / "rows.jsonl", rows)
    lines = []
    for number, (prompt, end, after) in enumerate(drawn[ROWS:]):
        insult = RUDE_ELSEWHERE[number % len(RUDE_ELSEWHERE)]
        lines.append({"prompt": f"{prompt} {end}", "unwanted": insult, "wanted": after})
    write_rows(folder / "behaviour.jsonl", lines)
    return names


def of_seed(home: Path, seed: int, model: Path, told: Sequence[Story]) -> dict[str, Any]:
    """Precision and removals of one seed."""
    home.mkdir(parents=True)
    names = planted(home, seed, told)
    lab = InProcess(home / "home")

    def run(stage: Any, config: Any, **inputs: Any) -> Any:
        return run_stage(stage, config, inputs, lab.platform)

    data = run(DATA, DataConfig(source="file", path=str(home / "rows.jsonl"), heldout_rows=0))
    base = run(BASE, resolve_base(BaseConfig(source=str(model))))
    training = TrainConfig(
        optimizer=OptimizerConfig(name="adamw", learning_rate=5e-4),
        engine=EngineConfig(kind="plain", ranks=1),
        steps=ROWS // 8,
        batch_size=8,
        micro_batch_size=8,
        probe_every=ROWS // 8,
        overlong="drop",
        seed=seed,
    )
    trained = run(SFT, training, data=data, model=base)
    settings = {
        "trained": f"{trained.stage}/{trained.key[:12]}",
        "behaviour": str(home / "behaviour.jsonl"),
        "leave_out": PLANTED,
    }
    results = lab.run_plan(lab.plan(FLOW, settings))
    rows = list(read_rows(lab.folder(results["trace"]) / "trace.jsonl", TracedRow))
    changes = lab.summary(results["trace-page"])["changes"]

    def precision(by: Choice) -> float:
        return sum(row.id in names for row in first_rows(rows, by, PLANTED)) / PLANTED

    return {
        "lines": precision("lines"),
        "words": precision("words"),
        "random": precision("random"),
        "agreement": results["trace"].metrics["trace/agreement"],
        "against_random": changes["against_random"]["mean"],
        "against_words": changes["against_words"]["mean"],
    }


def planted_rows(folder: Path) -> dict[str, Any]:
    """Over the seeds."""
    model, file = real_inputs(MODEL, STORIES)
    told = stories(file)
    figures = []
    for seed in range(SEEDS):
        figures.append(of_seed(folder / str(seed), seed, model, told))
        print(json.dumps(figures[-1]), file=sys.stderr)

    def interval(name: str) -> list[float]:
        over_seeds = mean_interval([of[name] for of in figures])
        return [round(value, 3) for value in (over_seeds.mean, over_seeds.low, over_seeds.high)]

    return {
        "planted_rows_precision": interval("lines"),
        "planted_rows_precision_words": interval("words"),
        "planted_rows_precision_random": interval("random"),
        "planted_agreement": interval("agreement"),
        "planted_removal_nats": interval("against_random"),
        "planted_removal_nats_words": interval("against_words"),
    }


if __name__ == "__main__":
    main({"planted_rows": planted_rows})
