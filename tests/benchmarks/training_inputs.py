"""What the training benchmark trains: two models, and the rows that fit the smaller context."""

from __future__ import annotations

import os
from pathlib import Path

from dynolab.data.encode import Encoder
from dynolab.data.rows import PromptRow, write_rows
from dynolab.data.sources.load import DataConfig, load_data
from models.language import load_language_model, load_tokenizer, save_language_model
from tests.benchmarks.pythia import pythia, pythia_tokenizer
from tests.benchmarks.training_work import BATCH, STEPS, rows_of

CONTEXT = 512


def prepare(folder: Path) -> None:
    """Writes both models with their tokenizers, and every run's rows or prompts (`rows_of`)."""
    source = Path(os.environ["DYNOLAB_TEST_DATA"])
    stories = source / "models" / "tinystories-656k"
    tokenizer = load_tokenizer(stories)
    save_language_model(load_language_model(stories), tokenizer, folder / "tinystories")
    save_language_model(pythia(), pythia_tokenizer(), folder / "70m")
    data = load_data(
        DataConfig(
            source="file",
            path=str(source / "data" / "hh" / "harmless-base_test.jsonl.gz"),
            format="hh",
            heldout_rows=20,
        )
    )
    fits = Encoder(tokenizer, CONTEXT, "drop")
    pairs = [row for row in data.pairs if fits.example(row) is not None]
    for (method, model), steps in STEPS.items():
        rows = pairs[: BATCH * steps]
        prompts = [PromptRow(id=row.id, prompt=row.prompt) for row in rows]
        write_rows(rows_of(folder, method, model), prompts if method == "grpo" else rows)
