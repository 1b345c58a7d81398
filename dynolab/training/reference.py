"""Log-probabilities under fixed weights: the sampling policy's, and the reference's, cached."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import collate, responses_of
from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.packing import plan_rows, share_prompts
from dynolab.likelihood.decoder import Reading
from dynolab.likelihood.token_logps import ResponseLogits, packing_width, token_logps

SideLogps = dict[int, Float[Tensor, " tokens"]]


def score_reference(
    logits: ResponseLogits,
    examples: Sequence[EncodedExample],
    sides: Sequence[int],
    pad_id: int,
    batch: int,
) -> dict[str, SideLogps]:
    """Per-token log-probabilities of every example's sides under the given weights.

    The ranks split the examples, `batch` per forward; every rank returns all.

    **Returns:** example id → side → log-probabilities in nats, one per response token.
    """
    scored = score_sides(logits, examples, sides, pad_id, batch)
    return {example.id: scores for example, scores in zip(examples, scored, strict=True)}


def score_sides(
    logits: ResponseLogits,
    examples: Sequence[EncodedExample],
    sides: Sequence[int],
    pad_id: int,
    batch: int,
) -> list[SideLogps]:
    """As `score_reference`, but a list in the examples' order, whose ids may repeat."""
    answers = [responses_of(example, sides) for example in examples]
    sequences = [sequence for _, sequence in chain.from_iterable(answers)]
    logps = iter(score_responses(logits, sequences, pad_id, batch * len(sides)))
    return [{side: next(logps) for side, _ in of_example} for of_example in answers]


@torch.no_grad()
def score_responses(
    logits: ResponseLogits,
    sequences: Sequence[Encoded],
    pad_id: int,
    batch: int,
    read: Reading = token_logps,
    *,
    temperature: float = 1.0,
) -> list[Float[Tensor, "response ..."]]:
    """Applies `read` to each sequence's response logits under the given weights.

    The ranks split runs of `batch` sequences; every rank returns all, on the CPU. By default
    returns log-probabilities in nats at `temperature`.
    """
    runs = [sequences[start : start + batch] for start in range(0, len(sequences), batch)]
    device = distributed.device()
    mine: list[list[Tensor]] = []
    for run in distributed.deal(runs):
        tokens = replace(collate(run, pad_id), temperature=temperature)
        shared = share_prompts(tokens, plan_rows(run, packing_width(logits))).to(device)
        parts = logits(shared, read).cpu().split([sequence.response_length for sequence in run])
        mine.append([part.clone() for part in parts])  # a view would carry all values along
    return list(chain.from_iterable(distributed.gather_dealt(mine)))


Score = Callable[[], list[SideLogps]]


def cached_reference(
    folder: Path,
    score: Score,
    examples: Sequence[EncodedExample],
    sides: Sequence[int],
    made_by: Mapping[str, object],
) -> list[SideLogps]:
    """Returns the cached scores, or computes and caches them. Collective.

    **Arguments:**

    - `score`: computes them, in the examples' order.
    - `made_by`: what scores depend on besides the tokens: weight digests, arithmetic settings.
    """
    file = folder / f"{_key(examples, sides, made_by)}.safetensors"
    # Scoring needs every rank, and not every host's folder may have the file.
    if all(distributed.gather(file.exists())):
        stored = load_file(file)
        return [
            {side: stored[f"{n}|{side}"] for side, _ in responses_of(example, sides)}
            for n, example in enumerate(examples)
        ]
    scores = score()
    if distributed.rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}")
        flat: dict[str, Tensor] = {}
        for n, of_sides in enumerate(scores):
            flat |= {f"{n}|{side}": values for side, values in of_sides.items()}
        save_file(flat, unfinished)
        unfinished.rename(file)
    return scores


def _key(
    examples: Sequence[EncodedExample], sides: Sequence[int], made_by: Mapping[str, object]
) -> str:
    content = hashlib.sha256(repr((sorted(made_by.items()), sides, torch.__version__)).encode())
    for example in examples:
        for encoded in (example.chosen, example.rejected):
            ids = () if encoded is None else (encoded.prompt_length, *encoded.ids)
            content.update(np.array([len(ids), *ids], dtype=np.int64).tobytes())
    return content.hexdigest()
