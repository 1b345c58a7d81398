"""Pairs of up to 72 tokens, for measures of memory."""

from __future__ import annotations

import random
from pathlib import Path

from transformers import PreTrainedModel

from dynolab.data.rows import Example, ProbeRow, write_rows
from tests.training.small import WORDS, make_tokenizer, probes_of

PAIRS, TOKENS = 4, 512
PROMPT, CHOSEN, REJECTED = 48, 24, 20
"""Words of the pairs, each a token."""


def write_long_pairs(home: Path, model: PreTrainedModel) -> list[ProbeRow]:
    """Writes a model, its tokenizer, pairs and probe rows, which are returned."""
    tokenizer, words = make_tokenizer(), random.Random(0)
    model.save_pretrained(home / "model")
    tokenizer.save_pretrained(home / "model")
    texts = [
        [" ".join(words.choices(WORDS, k=count)) for count in (PROMPT, CHOSEN, REJECTED)]
        for _ in range(4 * PAIRS)
    ]
    rows = [
        Example(id=str(n), prompt=p, chosen=f" {c}", rejected=f" {r}")
        for n, (p, c, r) in enumerate(texts)
    ]
    write_rows(home / "train.jsonl", rows)
    probes = probes_of(rows[:PAIRS])
    write_rows(home / "probes.jsonl", probes)
    return probes
