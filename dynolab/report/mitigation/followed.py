"""What became, under each arm, of the watched answers that fell most under the baseline."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from markupsafe import Markup

from dynolab.report.page import Section, section, table
from dynolab.report.style import SPLITS
from dynolab.report.text import excerpt, join, true_minus
from dynolab.results.arms import ComparedArms, FollowedAnswer
from dynolab.statistics import dominating, mean_interval

_NAMED = 2  # answers, in the sentence
_PROMPT = 70  # characters
_NAME = Markup(
    '<b class="num">{}</b> <span class="quiet">{}</span><br><small class="quiet">{}</small>'
)


class Followed:
    """The followed answers of a comparison, over the seeds that did not choose them.

    Answers chosen for a large fall in one training tend to fall less in another, whatever the arm:
    regression to the mean. So the first seed, which chose them, is left out where others watch
    them, too.
    """

    def __init__(self, compared: ComparedArms) -> None:
        self.baseline, self.named = compared.baseline, bool(compared.follow)
        self.answers = compared.followed
        self._seeds = compared.seeds
        there = [
            number
            for number in range(len(compared.seeds))
            if any(answer.changes[self.baseline][number] is not None for answer in self.answers)
        ]
        self._first, self._others = there[:1], there[1:]

    @property
    def free(self) -> bool:
        """Whether the means are over other seeds than the one that chose the answers."""
        return bool(self._others)

    @property
    def chosen_with(self) -> str:
        """The seed that chose the answers."""
        return _seeds([self._seeds[number] for number in self._first])

    @property
    def chooser(self) -> str:
        """What the first seed has to do with the choice."""
        if self.named:
            return "the study’s own in a file that a study wrote"
        return "by which they were chosen"

    @property
    def compared_over(self) -> str:
        """The seeds that the means are over."""
        return _seeds([self._seeds[number] for number in self._others or self._first])

    def at_first(self, answer: FollowedAnswer) -> float:
        """The answer's change under the baseline with the seed that chose it, in nats."""
        return _mean(answer, self.baseline, self._first)

    def change(self, answer: FollowedAnswer, arm: str) -> float:
        """Mean over seeds of the answer's change under an arm, in nats; NaN if not measured."""
        return _mean(answer, arm, self._others or self._first)

    def mean(self, arm: str, without: FollowedAnswer | None = None) -> float:
        """Mean change over the answers under an arm, in nats; of all, or without one of them."""
        changes = [self.change(a, arm) for a in self.answers if a is not without]
        return mean_interval(np.array(changes)).mean

    def differences(self, answer: FollowedAnswer, arm: str) -> list[float]:
        """The change under an arm minus that under the baseline, seed by seed."""
        both = (
            (answer.changes[arm][seed], answer.changes[self.baseline][seed])
            for seed in self._others or self._first
        )
        return [own - base for own, base in both if own is not None and base is not None]

    def mean_difference(self, answer: FollowedAnswer, arm: str) -> float:
        """The mean of `differences`; NaN without any."""
        return mean_interval(np.array(self.differences(answer, arm))).mean

    def best(self, arms: Collection[str]) -> str | None:
        """The arm under which the answers end highest on average; None if none was measured."""
        means = {
            arm: mean_interval(np.array([self.mean_difference(a, arm) for a in self.answers]))
            for arm in arms
        }
        measured = [arm for arm in means if means[arm].n]
        return max(measured, key=lambda arm: means[arm].mean, default=None)

    def mean_sentence(self, arm: str) -> str:
        """What the answers' mean is under an arm and the baseline; empty if none is followed."""
        own, before = self.mean(arm), self.mean(self.baseline)
        if not np.isfinite([own, before]).all():
            return ""
        return (
            f"Under {arm} the followed answers changed by {_nats(own)} in place of {_nats(before)} "
            f"nats on average{self._without_one(arm)}."
        )

    def _without_one(self, arm: str) -> str:
        """The same without a single answer that decides it, such as a very long one."""
        place = dominating(np.array([self.mean_difference(a, arm) for a in self.answers]))
        if place is None:
            return ""
        answer = self.answers[place]
        own, before = (self.mean(each, without=answer) for each in (arm, self.baseline))
        return f" ({_nats(own)} in place of {_nats(before)} without {answer.pair_id})"

    @property
    def which(self) -> str:
        """Which answers are followed."""
        answers = f"{len(self.answers)} answer{'s' if len(self.answers) > 1 else ''}"
        if self.named:
            return f"{answers} that the comparison’s file names (follow)"
        return f"{answers} that fell most under {self.baseline} with {self.chosen_with}"

    def sentence(self, arm: str) -> str:
        """How many of the answers end higher under an arm, how many lower; some of them by name."""
        gains = [(self.mean_difference(answer, arm), answer) for answer in self.answers]
        gains.sort(key=lambda pair: -pair[0])
        higher = [answer for gain, answer in gains if gain > 0]
        lower = [answer for gain, answer in reversed(gains) if gain < 0]
        named = [self._in_place_of(answer, arm) for answer in higher[:_NAMED]]
        changed = f" ({join(named)} nats)" if named else ""
        if lower:
            ends = f"end{'s' if len(lower) == 1 else ''}"
            worst = join([self._in_place_of(answer, arm) for answer in lower[:_NAMED]])
            changed += f"; {len(lower)} {ends} lower ({worst} nats)"
        chance = "" if self.free else f", {self.chooser}, so that part of it may be chance"
        return (
            f"Of the {self.which}, {len(higher)} end{'s' if len(higher) == 1 else ''} higher under "
            f"{arm} than under {self.baseline}, with {self.compared_over}{chance}{changed}."
        )

    def _in_place_of(self, answer: FollowedAnswer, arm: str) -> str:
        own, before = self.change(answer, arm), self.change(answer, self.baseline)
        return f"{answer.pair_id} {_nats(own)} in place of {_nats(before)}"


def followed_section(compared: ComparedArms) -> Section | None:
    """The followed answers, by arm; None if nothing is followed, or there is nothing to compare."""
    followed = Followed(compared)
    if not followed.answers or not compared.others:
        return None
    baseline = compared.baseline
    first = [f"{baseline}, {followed.chosen_with}"] if followed.free else []
    rows: list[Sequence[object]] = [
        (
            _name(answer),
            *([_nats(followed.at_first(answer))] if first else []),
            _nats(followed.change(answer, baseline)),
            *(_cell(followed, answer, other) for other in compared.others),
        )
        for answer in followed.answers
    ]
    head = ("answer", *first, baseline, *compared.others)
    return section(
        "followed",
        "What became of single answers",
        _message(compared, followed),
        table(head, rows, "s" + "n" * (len(head) - 1), cards=True),
        note=_note(compared, followed),
    )


def _message(compared: ComparedArms, followed: Followed) -> str:
    means = [
        f"{_nats(mean)} under {arm}"
        for arm in compared.arms
        if np.isfinite(mean := followed.mean(arm))
    ]
    return (
        f"The {followed.which} changed by {join(means)} nats, on average and with "
        f"{followed.compared_over}."
    )


def _name(answer: FollowedAnswer) -> Markup:
    prompt = excerpt(answer.prompt, _PROMPT, end=True)
    return _NAME.format(answer.pair_id, SPLITS[answer.split], prompt)


def _cell(followed: Followed, answer: FollowedAnswer, arm: str) -> Markup:
    change = _nats(followed.change(answer, arm))
    difference = _nats(followed.mean_difference(answer, arm))
    return Markup('{}<br><small class="quiet">{}</small>').format(change, difference)


def _note(compared: ComparedArms, followed: Followed) -> str:
    told = [
        "Δ log π of the chosen answer over the training, in nats, mean over "
        f"{followed.compared_over}; below: the difference from {compared.baseline}.",
        "Answers chosen for a large fall in one training tend to fall less in another, with a "
        "remedy or without, because part of the fall was chance.",
    ]
    if followed.free:
        told.append(f"So {followed.chosen_with}, {followed.chooser}, has only the first column.")
    elif len(compared.seeds) > 1:
        told.append(
            "No other seed watches these answers: part of what looks like a remedy may be that."
        )
    else:
        told.append("With one seed, part of what looks like a remedy may be that.")
    for arm in compared.others:
        left_out = set.intersection(*(set(run.left_out) for run in compared.runs[arm]))
        own = [answer.pair_id for answer in followed.answers if answer.pair_id in left_out]
        if own:
            told.append(f"{arm} does not train on {join(own)}.")
    known = {answer.pair_id for answer in compared.followed}
    if missing := [pair for pair in compared.follow if pair not in known]:
        told.append(f"Not watched: {join(missing)}.")
    return " ".join(told)


def _mean(answer: FollowedAnswer, arm: str, seeds: Collection[int]) -> float:
    changes = [answer.changes[arm][seed] for seed in seeds]
    return mean_interval(np.array(changes, dtype=float)).mean


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {join([str(seed) for seed in seeds])}"


def _nats(value: float) -> str:
    return true_minus(f"{value:+.2f}") if np.isfinite(value) else "–"
