"""On a pretrained Llama with tied embeddings: what is left of the provable part of a push."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import pytest
import torch

from dynolab.data.encode import Encoder
from dynolab.data.sources.load import DataConfig, load_data
from dynolab.forces import PolicyFunction
from experiments.chapters.squeezing.pushes import Tally, pushes
from models.language import folder_context, load_language_model, load_tokenizer


@pytest.mark.skipif(
    not os.environ.get("DYNOLAB_TEST_DATA"),
    reason="DYNOLAB_TEST_DATA names no folder with the real model and data",
)
def test_the_first_order_predicts_a_push_and_its_tokens_fall() -> None:
    folder = Path(os.environ["DYNOLAB_TEST_DATA"])
    model = folder / "models/tinystories-656k"
    source = folder / "data/probes/hh_helpful_probe_train.jsonl.gz"
    data = load_data(DataConfig(source="file", path=str(source), format="probe_file"))
    context = folder_context(model)
    encoder = Encoder(load_tokenizer(model), context, "drop")
    pairs = list(islice(filter(None, map(encoder.example, data.pairs)), 3))
    tally = Tally()
    for push in pushes(PolicyFunction(load_language_model(model), torch.float64), pairs, 0.01):
        tally.add(push)
    left = {(row["answer"], row["picture"]): row["left"] for row in tally.left_over()}
    assert max(left[answer, "first_order"] for answer in ("rejected", "chosen")) < 1e-3
    pushed = [row for row in tally.rows if row["answer"] == "rejected"]
    assert sum(row["label_fell"] for row in pushed) > 0.8 * sum(row["tokens"] for row in pushed)
