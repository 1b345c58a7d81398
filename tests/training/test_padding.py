"""Padding on either side: trained loss and gradient are those of the tokens alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dynolab.data.batches import TokenBatch, collate_examples, count_totals
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, read_rows
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import SimPOConfig, build_objective
from models.language import load_language_model, load_tokenizer

OBJECTIVE = build_objective(SimPOConfig())


def padded_left(batch: TokenBatch) -> TokenBatch:
    """The same sequences, each shifted to the end of its row."""
    pads = batch.input_ids.shape[1] - batch.attention_mask.sum(1)

    def shifted(rows: Tensor) -> Tensor:
        return torch.stack([row.roll(int(n)) for row, n in zip(rows, pads, strict=True)])

    mask = shifted(batch.attention_mask)
    return replace(
        batch,
        input_ids=shifted(batch.input_ids),
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        position=batch.position + pads[batch.sequence],
    )


def test_the_side_of_the_padding_changes_neither_loss_nor_gradient(inputs: Path) -> None:
    encoder = Encoder(load_tokenizer(inputs / "model"), 48, "error")
    examples = encoder.examples(list(read_rows(inputs / "train.jsonl", Example))[:6])
    right = collate_examples(examples, 0, OBJECTIVE.sides, count_totals(examples, OBJECTIVE.sides))
    left = padded_left(right)
    assert not torch.equal(left.input_ids, right.input_ids)
    results = []
    for batch in (right, left):
        model = load_language_model(inputs / "model", torch.float64)
        loss = OBJECTIVE.loss(token_logps(ResponseLogits(model)(batch), batch), batch)
        loss.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        results.append((loss.detach(), torch.cat(gradients)))
    (loss, gradient), (other_loss, other_gradient) = results
    assert abs(loss - other_loss) < 1e-6 * abs(loss)
    assert (gradient - other_gradient).norm() < 1e-5 * gradient.norm()
