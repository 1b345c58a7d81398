from __future__ import annotations

import numpy as np

from dynolab.data.rows import Split
from dynolab.probes.paths import LearningPaths, complete_pairs, pair_changes
from dynolab.results.study import ProbeScore


def paths_of(**logp: list[list[float]]) -> LearningPaths:
    """Paths of three pairs at two steps."""
    arrays = {kind: np.array(values, dtype=float) for kind, values in logp.items()}
    return LearningPaths(np.array([0, 10]), ("a", "b", "c"), arrays)


def test_pairs_come_worst_first_with_their_changes() -> None:
    paths = paths_of(
        chosen=[[-10, -10, -10], [-9, -14, -11]],
        rejected=[[-10, -10, -10], [-12, -13, -30]],
        argmax=[[-4, -4, -4], [-4, -3, -5]],
    )
    rows = pair_changes(paths, {"a": "what ?", "b": "who ?"})
    assert [(r.pair_id, r.prompt, r.chosen, r.rejected, r.margin, r.gap) for r in rows] == [
        ("b", "who ?", -4, -3, -1, 5),
        ("c", None, -1, -20, 19, 0),
        ("a", "what ?", 1, -2, 3, -1),
    ]


def test_what_was_not_watched_is_none() -> None:
    nan = float("nan")
    paths = paths_of(chosen=[[-1, -1, nan], [-2, -4, nan]], rejected=[[-1, nan, -1], [-2, nan, -3]])
    rows = pair_changes(paths, {})
    assert [(r.pair_id, r.chosen, r.rejected, r.margin, r.gap) for r in rows] == [
        ("b", -3, None, None, None),
        ("a", -1, -1, 0, None),
    ]
    assert pair_changes(paths_of(rejected=[[-1, -1, -1], [-2, -2, -2]]), {}) == []


def test_a_pair_without_one_of_its_answers_is_left_out() -> None:
    def score(pair: str, kind: str, split: Split = "train") -> ProbeScore:
        return ProbeScore(step=0, pair_id=pair, split=split, kind=kind, logp=-1, tokens=1)

    a, b = score("a", "chosen"), score("b", "chosen")
    whole = [a, score("a", "rejected"), score("a", "other")]
    assert complete_pairs([*whole, b, score("b", "other"), score("c", "rejected")]) == whole
    heldout = score("a", "chosen", "heldout")
    assert complete_pairs([*whole, heldout]) == whole
    assert complete_pairs([a, b]) == [a, b]
