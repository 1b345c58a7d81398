"""Single watched answers, followed from arm to arm: what became of those that fell most."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from dynolab.comparisons.pair_arms import CHOSEN, SPLITS
from dynolab.data.rows import ProbeRow, Split
from dynolab.probes.paths import change, learning_paths
from dynolab.results.arms import FollowedAnswer
from dynolab.results.study import ProbeScore

EACH = 5
"""Answers of each split that are followed."""

Key = tuple[Split, str]
"""Split and id of a watched pair."""


def chosen_changes(scores: Sequence[ProbeScore]) -> dict[Key, float]:
    """Δ log π, in nats, of every watched chosen answer from the first to the last probe."""
    changes: dict[Key, float] = {}
    for split in SPLITS:
        paths = learning_paths(scores, split)
        if paths is not None and CHOSEN in paths.logp:
            moved = zip(paths.pairs, change(paths.logp[CHOSEN]), strict=True)
            changes |= {(split, pair): float(nats) for pair, nats in moved if np.isfinite(nats)}
    return changes


def followed_answers(
    changes: Mapping[str, Sequence[Mapping[Key, float]]],
    watched: Sequence[Iterable[ProbeRow]],
    baseline: str,
    names: Collection[str] = (),
) -> tuple[FollowedAnswer, ...]:
    """The named answers, or those that fell most under the baseline with its first seed.

    Another seed may watch another pair under the same id, as in the built-in world: it counts only
    where prompt and answer are the same. Training answers come first, the one that fell most
    before the others.

    **Arguments:**

    - `changes`: by arm, `chosen_changes` seed by seed; empty for a diverged run.
    - `watched`: the watched rows, seed by seed.
    - `names`: ids of pairs; empty: the `EACH` answers of each split that fell most.
    """
    first = next((number for number, own in enumerate(changes[baseline]) if own), None)
    if first is None:
        return ()
    chosen = [
        {(row.split, row.pair_id): row for row in rows if row.kind == CHOSEN} for rows in watched
    ]
    fallen = changes[baseline][first]
    followed = []
    for split in SPLITS:
        own = sorted((key for key in fallen if key[0] == split), key=fallen.__getitem__)
        lowest = [key for key in own if fallen[key] < 0][:EACH]
        for key in [key for key in own if key[1] in names] if names else lowest:
            row, rows = chosen[first][key], [of_seed.get(key) for of_seed in chosen]
            same = [
                other is not None and (other.prompt, other.response) == (row.prompt, row.response)
                for other in rows
            ]
            moved = {
                arm: tuple(
                    own.get(key) if there else None for own, there in zip(seeds, same, strict=True)
                )
                for arm, seeds in changes.items()
            }
            followed.append(
                FollowedAnswer(pair_id=row.pair_id, split=split, prompt=row.prompt, changes=moved)
            )
    return tuple(followed)
