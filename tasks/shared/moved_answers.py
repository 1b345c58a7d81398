"""Which watched answers a training moved most."""

from __future__ import annotations

from pathlib import Path

from dynolab.data.rows import Split, read_rows
from dynolab.grouping import grouped
from dynolab.results.study import ProbeScore


def moved_most(trained: Path, split: Split, count: int, *, up: bool = False) -> list[str]:
    """Pairs of a split whose chosen answers fell most from first to last probe; rose, with `up`.

    Pairs that trainings leave out, because an answer exceeds the context, are not among them. Empty
    for a training that watched none.

    **Arguments:** `trained`: the folder of a training's result.
    """
    from dynolab.probes.paths import complete_pairs

    file = trained / "probes.jsonl"
    if not count or not file.exists():
        return []
    scores = grouped(
        (score.pair_id, score)
        for score in complete_pairs(list(read_rows(file, ProbeScore)))
        if score.split == split and score.kind == "chosen"
    )
    change = {pair: path[-1].logp - path[0].logp for pair, path in scores.items()}
    return sorted(change, key=change.__getitem__, reverse=up)[:count]
