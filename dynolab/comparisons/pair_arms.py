"""Figures of preference trainings: likelihoods of pairs, their models' answers, single answers.

Every figure is a mean over the pairs or prompts of a split with its interval, named
`<split>/<figure>`. Single watched answers are followed from arm to arm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
        paths = learning_paths(scores, split)
        if paths is None:
            continue
        moved = {}
        for kind in (CHOSEN, REJECTED, ARGMAX):
            if kind in paths.logp:
                moved[kind] = change(paths.logp[kind])
        if CHOSEN in moved and ARGMAX in moved:
            moved[GAP] = moved[ARGMAX] - moved[CHOSEN]
        if CHOSEN in moved and REJECTED in moved:
            moved[MARGIN] = moved[CHOSEN] - moved[REJECTED]
        if CHOSEN in moved:
            moved[FELL] = (moved[CHOSEN] < 0).astype(float)
        for name, values in moved.items():
            figures[f"{split}/{name}"] = mean_interval(values)
    return figures


def gap_by_margin(moved: Mapping[str, float]) -> dict[str, float]:
    """`gap_by_margin`: Δ gap over Δ margin, the cost in squeezing per nat of margin learned.

    An arm that only trains less has a smaller gap but the same ratio. Undefined, so left out, if
    the margin has grown by less than a nat.
    """
    ratios = {}
    for split in SPLITS:
        margin, gap = moved.get(f"{split}/{MARGIN}", 0.0), moved.get(f"{split}/{GAP}")
        if margin >= 1 and gap is not None:
            ratios[f"{split}/gap_by_margin"] = gap / margin
    return ratios


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


def _figures_of(sample: SampledAnswer) -> dict[str, float | None]:
    """The figures of a single answer; None where it cannot be checked."""
    answer, repetition = sample.answer, sample.repetition
    right = states_wrongly = None
    if answer.truth is not None:
        right = answered(answer.prompt, answer.answer) == answer.truth
        states_wrongly = answer_kind(answer.prompt, answer.answer, answer.truth) in WRONG
    return {
        "distinct_1": repetition.distinct_1,
        "distinct_2": repetition.distinct_2,
        "longest_repeat": repetition.longest_repeat,
        "repeaters": repetition.repeater,
        "entropy": -sample.logp,
        "tokens": answer.tokens,
        "finished": answer.finished,
        RIGHT: right,
        STATES_WRONGLY: states_wrongly,
        REFUSED: sample.refused,
    }


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
        values: dict[str, list[tuple[str, float | None]]] = {}
        texts: dict[str, list[str]] = {}
        for sample in samples:
            answer = sample.answer
            if answer.split == split:
                texts.setdefault(_prompt_of(answer.id), []).append(answer.answer.strip())
                for name, value in _figures_of(sample).items():
                    values.setdefault(name, []).append((answer.id, value))
        measured = {name: _over_prompts(by_answer) for name, by_answer in values.items()}
        different = [len(set(of_prompt)) / len(of_prompt) for of_prompt in texts.values()]
        measured["different"] = mean_interval(different)
        figures |= {f"{split}/{name}": mean for name, mean in measured.items() if mean.n}
    return figures


def win_figures(
    judgements: Sequence[Judgement], split_of: Mapping[str, Split]
) -> dict[str, Interval]:
    """`won`: how often a judge prefers the arm's answer to the baseline's, ties half, by split.

    Contests without a verdict in both orders do not count; `judged` is the share that do.
    """
    worth = {contest: worth_to_a(pair) for contest, pair in both_orders(judgements).items()}
    contests = dict.fromkeys(judgement.id for judgement in judgements)
    figures: dict[str, Interval] = {}
    for split in SPLITS:
        of_split = [contest for contest in contests if split_of[contest] == split]
        if of_split:
            won = [(contest, worth.get(contest)) for contest in of_split]
            judged = [(contest, float(contest in worth)) for contest in of_split]
            figures[f"{split}/{WON}"] = _over_prompts(won)
            figures[f"{split}/judged"] = _over_prompts(judged)
    return figures


def _prompt_of(answer: str) -> str:
    """The pair's id, from an answer's id `<pair>/<number>`."""
    return answer.rpartition("/")[0]


def _over_prompts(values: Iterable[tuple[str, float | None]]) -> Interval:
    """Mean over prompts of the means over their answers, so that the prompt is the unit."""
    by_prompt = grouped((_prompt_of(name), value) for name, value in values if value is not None)
    return mean_interval([float(np.mean(answers)) for answers in by_prompt.values()])


FOLLOWED = 5
"""Answers of each split that are followed."""

Key = tuple[Split, str]
"""Split and id of a watched pair."""


def chosen_changes(scores: Sequence[ProbeScore]) -> dict[Key, float]:
    """Δ log π, in nats, of every watched chosen answer from the first to the last probe."""
    changes: dict[Key, float] = {}
    for split in SPLITS:
        paths = learning_paths(scores, split)
        if paths is not None and CHOSEN in paths.logp:
            for pair, nats in zip(paths.pairs, change(paths.logp[CHOSEN]), strict=True):
                if np.isfinite(nats):
                    changes[split, pair] = float(nats)
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
    - `names`: ids of pairs; empty: the `FOLLOWED` answers of each split that fell most.
    """
    seeds = [seed for seed, by_pair in enumerate(changes[baseline]) if by_pair]
    if not seeds:
        return ()
    chosen: list[dict[Key, ProbeRow]] = []
    for rows in watched:
        chosen.append({(row.split, row.pair_id): row for row in rows if row.kind == CHOSEN})
    fallen = changes[baseline][seeds[0]]
    followed = []
    for split in SPLITS:
        # From the one that fell most.
        of_split = sorted((key for key in fallen if key[0] == split), key=fallen.__getitem__)
        lowest = [key for key in of_split if fallen[key] < 0][:FOLLOWED]
        for key in [key for key in of_split if key[1] in names] if names else lowest:
            row = chosen[seeds[0]][key]
            same = [_same_answer(row, of_seed.get(key)) for of_seed in chosen]
            moved: dict[str, tuple[float | None, ...]] = {}
            for arm, by_seed in changes.items():
                watches = zip(by_seed, same, strict=True)
                moved[arm] = tuple(run.get(key) if there else None for run, there in watches)
            followed.append(
                FollowedAnswer(pair_id=row.pair_id, split=split, prompt=row.prompt, changes=moved)
            )
    return tuple(followed)


def _same_answer(row: ProbeRow, other: ProbeRow | None) -> bool:
    if other is None:
        return False
    return (other.prompt, other.response) == (row.prompt, row.response)
