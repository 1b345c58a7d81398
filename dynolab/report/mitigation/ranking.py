"""Which arm holds chosen answers up best: in training, held out, and at the same margin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dynolab.comparisons.arm_table import ArmTable
from dynolab.data.rows import Split
from dynolab.report.mitigation.matched import CHOSEN, matched_table_of
from dynolab.report.style import SPLITS
from dynolab.report.text import join, with_interval
from dynolab.results.arms import ComparedArms
from dynolab.statistics import Interval, clear

PLACES = {"train": "in training", "heldout": "held out", "matched": "at the same margin"}
"""Where the mean chosen answer is compared with the baseline's, in nats."""

FELL = {"train/fell": "in training", "heldout/fell": "held out"}
"""Shares of chosen answers that are compared, in points; fewer are better."""

CRITERION = (
    "“Best” is the arm that is clearly worse in none of five measures, and clearly better in more "
    "of them than any other: mean change in training, held out and at the same margin, and the "
    "shares that fell; of several, the one whose mean ends highest held out."
)


class Gains:
    """How arms' chosen answers end against the baseline's: by place in nats, and shares that fell.

    `few`: by place, the number of its pairs where these are too few to decide.
    """

    def __init__(self, compared: ComparedArms, figures: ArmTable, arms: Sequence[str]) -> None:
        matched = matched_table_of(compared)
        self.baseline = compared.baseline
        self.few = {
            "train": figures.few("train/chosen"),
            "heldout": figures.few("heldout/chosen"),
            "matched": matched.few(CHOSEN),
            **{name: figures.few(name) for name in FELL},
        }
        self._of: dict[str, dict[str, Interval]] = {}
        for arm in arms:
            each: dict[str, Interval] = {
                split: figures.difference(arm, compared.baseline, f"{split}/chosen")
                for split in SPLITS
            }
            each["matched"] = matched.mean(arm, CHOSEN)
            each |= {name: figures.difference(arm, compared.baseline, name) for name in FELL}
            self._of[arm] = {place: change for place, change in each.items() if change.n}

    def of(self, arm: str) -> Mapping[str, Interval]:
        """An arm's differences from the baseline, by place."""
        return self._of.get(arm, {})

    def decides(self, arm: str, place: str) -> bool:
        """Whether an arm's difference is clear, and not of a few pairs."""
        change = self.of(arm).get(place)
        return change is not None and clear(change) and not self.few[place]

    def measured(self, place: str) -> bool:
        """Whether any arm is compared there."""
        return any(place in own for own in self._of.values())

    def best_first(self) -> list[str]:
        """The arms that are clearly better somewhere and clearly worse nowhere."""
        good = [arm for arm in self._of if self._clear(arm, 1) and not self._clear(arm, -1)]
        return sorted(
            good, key=lambda arm: (len(self._clear(arm, 1)), self._end(arm)), reverse=True
        )

    def best(self) -> str | None:
        """The arm that is recommended; None if none is clearly better."""
        return next(iter(self.best_first()), None)

    def highest(self) -> str | None:
        """The arm that ends highest on average: held out, else in training."""
        ends = {arm: self._end(arm) for arm, own in self._of.items() if own}
        return max(ends, key=ends.__getitem__, default=None)

    def worse(self) -> list[str]:
        """The arms that are clearly worse somewhere."""
        return [arm for arm in self._of if self._clear(arm, -1)]

    @property
    def arms(self) -> list[str]:
        """The arms that are compared with the baseline."""
        return [arm for arm, own in self._of.items() if own]

    def how_many_ways(self, best: str) -> str:
        """“more ways than any other”: in how many measures the best is clearly better."""
        own = len(self._clear(best, 1))
        most = max((len(self._clear(arm, 1)) for arm in self._of if arm != best), default=0)
        ways = f"{own} way{'s' if own > 1 else ''}"
        if not most:
            return f"{ways}, and no other arm anywhere,"
        if own < most:  # an arm that is worse elsewhere
            return ways
        return "more ways than any other arm" if own > most else "as many ways as any other arm"

    def clear_in_words(self, arm: str) -> str:
        """“in the mean (in training) and in the share that fell (held out)”: where it is better."""
        return _in_words(self._clear(arm, 1))

    def lacks_in_words(self, arm: str, best: str) -> str:
        """“is not clearly better in the mean (held out)”: where the best is and an arm is not."""
        own = self._clear(arm, 1)
        lacks = _in_words([place for place in self._clear(best, 1) if place not in own])
        return f"it is not clearly better than {self.baseline} {lacks}"

    def end_in_words(self, arm: str) -> str:
        """“higher held out”: the place by which arms are ordered."""
        return f"higher {PLACES[self._ordered_by(arm)]}"

    def worse_in_words(self, arm: str) -> str:
        """“in the mean (in training)”: where an arm is clearly worse."""
        return _in_words(self._clear(arm, -1))

    def difference_in_words(self, arm: str, place: str) -> str:
        """“ (+0.5 [0.1, 0.9])”: an arm's difference in nats; empty if it is of too few pairs."""
        change = self.of(arm).get(place)
        return "" if change is None or self.few[place] else f" ({with_interval(change)})"

    def _clear(self, arm: str, sign: int) -> list[str]:
        return [
            place
            for place, change in self.of(arm).items()
            if self.decides(arm, place) and sign * _better(place) * change.mean > 0
        ]

    def _end(self, arm: str) -> float:
        own, split = self.of(arm), self._ordered_by(arm)
        return own[split].mean if split in own else float("-inf")

    def _ordered_by(self, arm: str) -> Split:
        return "heldout" if "heldout" in self.of(arm) and not self.few["heldout"] else "train"

    def undecided(self) -> Iterator[tuple[Split, int]]:
        """Splits that are measured over too few pairs, and how many these are."""
        for split in SPLITS:
            if self.measured(split) and self.few[split]:
                yield split, self.few[split]


def _in_words(measures: Sequence[str]) -> str:
    """“in the mean (in training, held out) and in the share that fell (held out)”."""
    each = (("the mean", PLACES), ("the share that fell", FELL))
    own = ((what, [names[place] for place in measures if place in names]) for what, names in each)
    return join([f"in {what} ({', '.join(places)})" for what, places in own if places])


def _better(place: str) -> int:
    """The sign of a change for the better."""
    return -1 if place in FELL else 1
