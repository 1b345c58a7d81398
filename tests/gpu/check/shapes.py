"""Models of Pythia's shapes with random weights, and pairs of HH's lengths."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynolab.data.rows import Example, spaced, write_rows
from dynolab.training.config import TrainConfig
from tests.benchmarks.pythia import PYTHIA_160M, PYTHIA_410M, pythia
from tests.training.small import WORDS, make_tokenizer

ROWS = 64


@dataclass(frozen=True)
class Shape:
    """Sizes of a GPT-NeoX, tokens of a pair's parts, and pairs of a step and of a forward."""

    sizes: dict[str, int]
    prompt: int
    chosen: int
    rejected: int
    batch: int
    micro_batch: int

    @property
    def tokens(self) -> int:
        """Of a pair: its answers share a prompt, which begins with a token of its own."""
        return 1 + self.prompt + self.chosen + self.rejected + 2


LENGTHS = {"prompt": 134, "chosen": 62, "rejected": 47}
LARGE = Shape(
    PYTHIA_160M,
    **LENGTHS,
    batch=16,
    micro_batch=8,
)
LARGEST = Shape(
    PYTHIA_410M,
    **LENGTHS,
    batch=32,
    micro_batch=8,
)
SMALL = Shape(
    {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    },
    prompt=8,
    chosen=4,
    rejected=3,
    batch=8,
    micro_batch=2,
)


def make_shape(folder: Path, shape: Shape) -> int:
    """Writes `model/` and `train.jsonl`; returns the number of parameters."""
    rng = random.Random(0)

    def say(words: int) -> str:
        return spaced(" ".join(rng.choices(WORDS, k=words)))

    model = pythia(**shape.sizes)
    model.save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    rows = [
        Example(
            id=f"r{number}",
            prompt=say(shape.prompt),
            chosen=say(shape.chosen),
            rejected=say(shape.rejected),
        )
        for number in range(ROWS)
    ]
    write_rows(folder / "train.jsonl", rows)
    write_rows(folder / "probes.jsonl", [])
    return sum(parameter.numel() for parameter in model.parameters())


def shape_settings(shape: Shape, **changes: Any) -> TrainConfig:
    """DPO on the shape's pairs by AdamW."""
    whole: dict[str, Any] = {
        "objective": {"name": "dpo"},
        "optimizer": {"name": "adamw", "learning_rate": 1e-6},
        "engine": {"kind": "plain", "ranks": 1},
        "batch_size": shape.batch,
        "micro_batch_size": shape.micro_batch,
        "probe_every": 0,
        "checkpoint_every": 0,
    }
    return TrainConfig.model_validate(whole | changes)
