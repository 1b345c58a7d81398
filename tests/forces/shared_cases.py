"""What one process and many ranks compute alike."""

from __future__ import annotations

from pathlib import Path

import torch

from dynolab.forces import ForceMap
from tests.forces.families import Case, case
from tests.forces.small_models import encoded

MAPS = {"even": [(4, 5)] * 6, "uneven": [(4, 12), (3, 2), (5, 3)]}
"""Lengths of prompts and responses that are observed."""


def make_map(name: str, folder: Path | None = None, *, over_ranks: bool = False) -> ForceMap:
    """A map by references of three digits: a number of threads must not make them other inputs."""
    here = case("llama_tied", torch.float32)
    sides = ("chosen_reference", "rejected_reference")
    examples = [
        one.model_copy(
            update={side: [round(value, 3) for value in getattr(one, side)] for side in sides}
        )
        for one in here.examples
    ]
    return Case(here.policy, examples).force_map(
        observed=[encoded(seed, *lengths) for seed, lengths in enumerate(MAPS[name])],
        update=1.0,
        folder=folder,
        over_ranks=over_ranks,
    )
