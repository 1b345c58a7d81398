"""A rank program: force maps shared out over the ranks, saved by rank 0; `make_map` makes them
everywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from dynolab import distributed
from dynolab.errors import ConfigError
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


def main() -> None:
    folder = Path(sys.argv[1]).parent
    distributed.join()
    for name in MAPS:
        found = make_map(name, over_ranks=True)
        everywhere = distributed.gather(found.force)
        assert all(np.array_equal(found.force, other) for other in everywhere)
        written = make_map(name, folder / name, over_ranks=True)
        if distributed.rank() == 0:
            np.save(folder / f"{name}.npy", found.force)
            assert isinstance(written, ForceMap)
    try:
        make_map("uneven", folder / "even", over_ranks=True)
    except ConfigError as error:
        refused = str(error)
    said = distributed.gather(refused)
    if distributed.rank() == 0:
        (folder / "refused.json").write_text(json.dumps(said))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
