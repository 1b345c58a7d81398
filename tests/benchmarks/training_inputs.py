"""What the training benchmark trains: two models, and the rows that fit the smaller context."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

from dynolab.data.encode import Encoder
from dynolab.data.rows import PromptRow, write_rows
from dynolab.data.sources.load import DataConfig, load_data
from models.language import load_language_model, load_tokenizer, save_language_model
from tests.benchmarks.training_work import BATCH, STEPS, rows_of

CONTEXT = 512


def prepare(folder: Path) -> None:
    """Writes both models with their tokenizers, and every run's rows or prompts (`rows_of`)."""
    source = Path(os.environ["DYNOLAB_TEST_DATA"])
    stories = source / "models" / "tinystories-656k"
    tokenizer = load_tokenizer(stories)
    save_language_model(load_language_model(stories), tokenizer, folder / "tinystories")
    file = source / "models" / "pythia-tokenizer" / "tokenizer.json"
    end = "<|endoftext|>"
    pythia = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token=end, pad_token=end)
    torch.manual_seed(0)
    shape = GPTNeoXConfig(
        vocab_size=50_304,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=2048,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    save_language_model(GPTNeoXForCausalLM(shape), pythia, folder / "70m")
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
