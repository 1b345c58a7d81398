"""A rank program: force maps shared out over the ranks, saved by rank 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.forces import ForceMap
from tests.forces.shared_cases import MAPS, make_map


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
