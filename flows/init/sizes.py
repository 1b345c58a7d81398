"""Sizes of a model and of its rows, which a study file begins with."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynolab.data.encode import Encoder
from dynolab.data.sources.load import LoadedData
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Sizes:
    """Of a model and its rows, in tokens; a row is a prompt with one answer.

    `unknown`: of the training pairs' answers.
    """

    weights: int
    context: int
    row: float
    longest: int
    pairs: int
    overlong_pairs: int
    overlong_answers: int
    unknown: UnknownTokens

    def __str__(self) -> str:
        text = (
            f"The model has {self.weights:,} weights and a context of {self.context} tokens; a "
            f"prompt with one answer has {self.row:.0f} of them (median), at most {self.longest}."
        )
        if self.overlong_pairs:
            text += (
                f" {self.overlong_pairs} of {self.pairs} pairs exceed the context: trainings leave "
                "them out (overlong: drop)."
            )
        return text


def measured_sizes(model: str, tokenizer: PreTrainedTokenizerBase, loaded: LoadedData) -> Sizes:
    """Sizes of the model, and tokens of pairs and watched answers."""
    import torch

    from models.language import context_length, load_language_model

    language_model = load_language_model(model, tokenizer=tokenizer, device=torch.device("cpu"))
    context = context_length(language_model)
    trained_on, encoder = (Encoder(tokenizer, 2**31, "error") for _ in range(2))
    heldout = [pair for row in loaded.heldout if (pair := encoder.example(row)) is not None]
    encoded = [*trained_on.examples(loaded.pairs), *heldout]
    pairs = [
        [len(side.ids) for side in (pair.chosen, pair.rejected) if side is not None]
        for pair in encoded
    ]
    overlong = sum(max(pair) > context for pair in pairs)
    if overlong == len(pairs):
        raise ConfigError("data", f"{len(pairs)} rows", f"all exceed the context of {context}")
    # A watched answer to another prompt can be longer than any pair.
    responses = [encoder.probe(row) for row in loaded.probes]
    watched = [len(response.ids) for response in responses if response is not None]
    rows = [length for pair in pairs for length in pair]
    return Sizes(
        weights=sum(parameter.numel() for parameter in language_model.parameters()),
        context=context,
        row=statistics.median(rows),
        longest=max(rows),
        pairs=len(pairs),
        overlong_pairs=overlong,
        overlong_answers=sum(length > context for length in watched),
        unknown=trained_on.counts.unknown,
    )
