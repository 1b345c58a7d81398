"""Caches reference log-probabilities on disk, keyed by the content they depend on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dynolab import distributed
from dynolab.data.batches import responses_of
from dynolab.data.encode import EncodedExample
from dynolab.training.reference import SideLogps

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
        flat = {f"{n}|{side}": own for n, score in enumerate(scores) for side, own in score.items()}
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
