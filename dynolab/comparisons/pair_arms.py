"""Figures of preference trainings: likelihoods of pairs, their models' answers, single answers.

Every figure is a mean over the pairs or prompts of a split with its interval, named
`<split>/<figure>`. Single watched answers are followed from arm to arm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dynolab.data.rows import ProbeRow, Split
from dynolab.data.world.answer_kinds import WRONG, answer_kind
from dynolab.data.world.lexicon import answered
from dynolab.grouping import grouped
from dynolab.judges.win_rate import both_orders, worth_to_a
from dynolab.probes.paths import change, learning_paths
from dynolab.results.arms import FollowedAnswer
from dynolab.results.judges import Judgement, PolicyAnswer
from dynolab.results.study import ARGMAX, ProbeScore, Repetition
from dynolab.statistics import Interval, mean_interval

SPLITS: tuple[Split, ...] = ("train", "heldout")

GAP, CHOSEN, REJECTED, MARGIN, FELL = "gap", "chosen", "rejected", "margin", "fell"
RIGHT, STATES_WRONGLY, REFUSED, WON = "right", "wrong", "refused", "won"


def path_figures(scores: Sequence[ProbeScore]) -> dict[str, Interval]:
    """Changes from the first to the last probe, in nats.

    `chosen`, `rejected`, `argmax` (y*): Δ log π; `gap`: Δ(log π(y*) − log π(y⁺)); `margin`:
    Δ(log π(y⁺) − log π(y⁻)). `fell`: the share of chosen answers that fell.
    """
    figures: dict[str, Interval] = {}
    for split in SPLITS:
        if (paths := learning_paths(scores, split)) is None:
            continue
        known = {kind for kind in (CHOSEN, REJECTED, ARGMAX) if kind in paths.logp}
        moved = {kind: change(paths.logp[kind]) for kind in known}
        if {ARGMAX, CHOSEN} <= known:
            moved[GAP] = moved[ARGMAX] - moved[CHOSEN]
        if {CHOSEN, REJECTED} <= known:
            moved[MARGIN] = moved[CHOSEN] - moved[REJECTED]
        if CHOSEN in known:
            moved[FELL] = (moved[CHOSEN] < 0).astype(float)
        figures |= {f"{split}/{name}": mean_interval(values) for name, values in moved.items()}
    return figures


def gap_by_margin(moved: Mapping[str, float]) -> dict[str, float]:
    """`gap_by_margin`: Δ gap over Δ margin, the cost in squeezing per nat of margin learned.

    An arm that only trains less has a smaller gap but the same ratio. Undefined, so left out, if
    the margin has grown by less than a nat.
    """
    return {
        f"{split}/gap_by_margin": moved[f"{split}/{GAP}"] / margin
        for split in SPLITS
        if (margin := moved.get(f"{split}/{MARGIN}", 0.0)) >= 1 and f"{split}/{GAP}" in moved
    }


@dataclass(frozen=True)
class SampledAnswer:
    """A model's sampled answer to a pair's prompt; its id is `<pair>/<number>`.

    `refused`: the answer repeats the fault of the pair's rejected answer; None if that cannot be
    checked (`repeats_fault`). `logp` is log π of the answer in nats, including its end token if it
    has one, under the distribution that it was drawn from.
    """

    answer: PolicyAnswer
    refused: bool | None
    logp: float
    repetition: Repetition


_ANSWER_FIGURES: dict[str, Callable[[SampledAnswer], float | None]] = {
    "distinct_1": lambda sample: sample.repetition.distinct_1,
    "distinct_2": lambda sample: sample.repetition.distinct_2,
    "longest_repeat": lambda sample: sample.repetition.longest_repeat,
    "repeaters": lambda sample: sample.repetition.repeater,
    "entropy": lambda sample: -sample.logp,
    "tokens": lambda sample: sample.answer.tokens,
    "finished": lambda sample: sample.answer.finished,
    RIGHT: lambda sample: (
        None
        if (own := sample.answer).truth is None
        else answered(own.prompt, own.answer) == own.truth
    ),
    STATES_WRONGLY: lambda sample: (
        None
        if (own := sample.answer).truth is None
        else answer_kind(own.prompt, own.answer, own.truth) in WRONG
    ),
    REFUSED: lambda sample: sample.refused,
}
"""Figures of single answers; None where an answer cannot be checked."""


def answer_figures(samples: Sequence[SampledAnswer]) -> dict[str, Interval]:
    """Diversity of answers and, where it can be checked, correctness.

    Per answer: `distinct_1`, `distinct_2`, `longest_repeat` and `repeaters` (`Repetition`),
    `entropy`, −log π, whose mean over samples is the entropy of whole answers in nats, `tokens`,
    `finished`. Per prompt: `different`, the share of different texts. `right`: share of answers
    that state the chosen answer's fact; `wrong`: share that state something else (`WRONG`);
    `refused`: share that repeat the rejected one's fault.
    """
    figures: dict[str, Interval] = {}
    for split in SPLITS:
        own = [sample for sample in samples if sample.answer.split == split]
        measured = {
            name: _over_prompts((sample.answer.id, of(sample)) for sample in own)
            for name, of in _ANSWER_FIGURES.items()
        }
        texts = grouped(
            (_prompt_of(sample.answer.id), sample.answer.answer.strip()) for sample in own
        )
        shares = [len(set(said)) / len(said) for said in texts.values()]
        measured["different"] = mean_interval(np.array(shares))
        figures |= {f"{split}/{name}": mean for name, mean in measured.items() if mean.n}
    return figures


def win_figures(
    judgements: Sequence[Judgement], split_of: Mapping[str, Split]
) -> dict[str, Interval]:
    """`won`: how often a judge prefers the arm's answer to the baseline's, ties half, by split.

    Contests without a verdict in both orders do not count; `judged` is the share that do.
    """
    worth = {name: worth_to_a(both) for name, both in both_orders(judgements).items()}
    figures: dict[str, Interval] = {}
    for split in SPLITS:
        asked = [
            name for name in dict.fromkeys(j.id for j in judgements) if split_of[name] == split
        ]
        if asked:
            won = [(name, worth[name]) for name in asked if name in worth]
            figures[f"{split}/{WON}"] = _over_prompts(won)
            figures[f"{split}/judged"] = _over_prompts(
                (name, float(name in worth)) for name in asked
            )
    return figures


def _prompt_of(answer: str) -> str:
    """The pair's id, from an answer's id `<pair>/<number>`."""
    return answer.rpartition("/")[0]


def _over_prompts(values: Iterable[tuple[str, float | None]]) -> Interval:
    """Mean over prompts of the means over their answers, so that the prompt is the unit."""
    by_prompt = grouped((_prompt_of(name), value) for name, value in values if value is not None)
    return mean_interval(np.array([np.mean(own) for own in by_prompt.values()], dtype=float))


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
