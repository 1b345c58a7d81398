"""Tables that compare: runs, ranked by clear differences, and claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from jaxtyping import Float
from markupsafe import Markup
from numpy import ndarray

from dynolab.claims.arms import EVEN, WON
from dynolab.claims.verdict import APPEARS, Measurement, Outcome, Verdict
from dynolab.comparisons.arm_table import ArmTable
from dynolab.grouping import attributes
from dynolab.report.page import table
from dynolab.report.style import mean_and_ends, number, with_interval
from dynolab.results.arms import RunFigures
from dynolab.statistics import Interval, mean_interval

_CELL = Markup('<span title="{}">{}</span><br><small>{}</small>')
_NAME = Markup('<b class="num">{}</b>{}<br><small class="quiet">{}</small>')
_BEST = Markup(' <span class="verdict appears">✓ best</span>')


@dataclass(frozen=True)
class Measure:
    """A column: the name of a figure in the table, its caption, and how its numbers are written.

    `share`: in percent; `signed`: a change, with its sign.
    """

    figure: str
    caption: str
    share: bool = False
    signed: bool = False


def run_table(
    figures: ArmTable,
    runs: Sequence[str],
    measures: Sequence[Measure],
    baseline: str | None,
    best: str | None = None,
    about: Mapping[str, str] | None = None,
) -> Markup:
    """Every run's mean and, below it, its difference from the baseline with its 95% interval.

    A difference is bold where its interval excludes zero and it is of enough prompts
    (`ArmTable.decides`). The mean's own interval is its tooltip.

    **Arguments:** `baseline`: None shows the mean's own interval in place of a difference; `best`:
    the run that is marked; `about`: a remark below a run's name.
    """
    shown = [measure for measure in measures if measure.figure in figures.names]
    rows = []
    for run in runs:
        cells = [_cell(figures, run, measure, baseline) for measure in shown]
        rows.append((run_name(run, run == best, (about or {}).get(run, "")), *cells))
    head = ("run", *(measure.caption for measure in shown))
    return table(head, rows, "s" + "n" * len(shown), cards=True)


def run_name(run: str, best: bool = False, about: str = "") -> Markup:
    """A run's name in the table's first column."""
    return _NAME.format(run, _BEST if best else "", about)


def ending(trainings: Mapping[int, RunFigures]) -> str:
    """How a run's trainings, by seed, ended; empty if all did after their last step."""
    ends, stops = [], []
    for seed, run in trainings.items():
        if run.diverged is not None:
            ends.append(f"seed {seed} diverged after {run.diverged.step} steps")
        if run.alarm is not None and run.alarm.stopped:
            stops.append(run.alarm.step)
    if stops:
        steps = "–".join(dict.fromkeys(map(str, (min(stops), max(stops)))))
        ends.append(f"{len(stops)} of {len(trainings)} ended by the alarm at step {steps}")
    return "; ".join(ends)


def intervals_of_change(values: Float[ndarray, "steps seeds"]) -> list[Interval]:
    """Means over seeds at every step, with the intervals of the change since the first.

    Seeds start from different models; an interval is to show the change only.
    """
    changes = values - values[:1] + values[:1].mean(axis=1, keepdims=True)
    return [mean_interval(step) for step in changes]


def _cell(figures: ArmTable, run: str, measure: Measure, baseline: str | None) -> Markup | str:
    factor = 100 if measure.share else 1
    value = figures.mean(run, measure.figure)
    if not value.n:
        return "–"
    mean, ends = mean_and_ends(value.times(factor), measure.signed)
    if baseline is None:
        return _CELL.format("", mean, ends)
    change = figures.difference(run, baseline, measure.figure)
    if run == baseline or not change.n:
        return _CELL.format(ends, mean, "")
    difference = Markup("{}<br>{}").format(*mean_and_ends(change.times(factor), True))
    clear = figures.decides(change, measure.figure)
    return _CELL.format(ends, mean, Markup("<b>{}</b>").format(difference) if clear else difference)


MEASURES: Mapping[str, int] = {
    "train/chosen": 1,
    "heldout/chosen": 1,
    "matched/chosen": 1,
    "matched/heldout": 1,
    "train/fell": -1,
    "heldout/fell": -1,
}
"""Figure → 1 if more is better, −1 if less is: mean changes of chosen answers in nats, at the end
and at the same margin, and shares of them that fell."""

MATCHED = ("matched/heldout", "matched/chosen")
"""Measures at the same margin. A run that is better only at its end may have learned less."""

RIGHT_ANSWERS = ("heldout/right", "train/right")
"""Shares of a run's answers that are right."""

ENDS = ("heldout/chosen", "train/chosen")
"""Figures that order runs which are better on equally many measures."""


@dataclass(frozen=True)
class Standing:
    """A run against the baseline: the measures on which it is clearly better, and clearly worse.

    `end`: its mean difference from the baseline, by which equals are ordered; `lost`: what its
    answers clearly lose (`losses`), even if they became likelier; `decisive`: measures of which a
    run must be better on one.
    """

    run: str
    better: tuple[str, ...]
    worse: tuple[str, ...]
    end: float
    lost: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()

    @property
    def recommended(self) -> bool:
        """Clearly better on a decisive measure, clearly worse on none, and at no loss."""
        return bool({*self.better} & {*self.decisive}) and not self.worse and not self.lost

    @property
    def rank(self) -> tuple[bool, int, float]:
        """What orders the runs: the larger, the earlier."""
        return self.recommended, len(self.better), self.end


def standings(
    figures: ArmTable,
    runs: Sequence[str],
    baseline: str,
    measures: Mapping[str, int] = MEASURES,
    ends: Sequence[str] = ENDS,
) -> list[Standing]:
    """The runs, recommended ones first, then by measures that are better, then by their ends.

    Clear: the 95% interval over seeds excludes zero, of enough pairs (`ArmTable.decides`). Where
    runs are compared at the same margin, being better there decides, held out if that was measured.

    **Arguments:** `measures`: figures with the sign of what is better; `ends`: the figures of
    `Standing.end`; the first one with enough pairs counts.
    """

    enough = [name for name in ends if name in figures.names and not figures.few(name)]
    end_name = enough[0] if enough else ends[-1]
    matched = [name for name in MATCHED if name in measures and name in figures.names]
    decisive = tuple(matched[:1] or measures)
    unordered = []
    for run in runs:
        better: list[str] = []
        worse: list[str] = []
        for name, sign in measures.items():
            change = figures.difference(run, baseline, name)
            if figures.decides(change, name):
                (better if sign * change.mean > 0 else worse).append(name)
        end = figures.difference(run, baseline, end_name)
        end_mean = end.mean if end.n else -inf
        lost = losses(figures, run, baseline)
        unordered.append(Standing(run, tuple(better), tuple(worse), end_mean, lost, decisive))
    return sorted(unordered, key=attrgetter("rank"), reverse=True)


def losses(figures: ArmTable, run: str, baseline: str) -> tuple[str, ...]:
    """What a run's answers clearly lose: fewer are right than the baseline's, or fewer contests are
    won against these than lost."""
    lost = []
    for name in RIGHT_ANSWERS:
        change = figures.difference(run, baseline, name)
        if figures.decides(change, name) and change.high < 0:
            lost.append(name)
    if figures.mean(run, WON).high < EVEN and not figures.few(WON):
        lost.append(WON)
    return tuple(lost)


def unlearned(figures: ArmTable, runs: Sequence[str]) -> list[str]:
    """Runs that do not prefer the chosen answers of training pairs more than before."""
    margins = {run: figures.mean(run, "train/margin") for run in runs}
    return [run for run, margin in margins.items() if margin.n and margin.mean <= 0]


MARKS: Mapping[Outcome, str] = {
    "holds": "✓",
    "fails": "✗",
    "unclear": "?",
    "not measured": "–",
}


def verdict_table(
    about: str,
    verdicts: Sequence[Verdict],
    *,
    named: Callable[[str], str] = str,
    words: Mapping[Outcome, str] = APPEARS,
) -> Markup:
    """One line for each claim.

    **Arguments:**

    - `about`: heading of the first column, whose entries are `named(verdict.topic)`.
    - `words`: labels of outcomes; an outcome without one is shown by its name.
    """
    rows = []
    for verdict in verdicts:
        least = min(attributes(verdict.measured, "n"), default=0)
        row = (
            named(verdict.topic),
            verdict.claim,
            verdict.expected,
            _figures(verdict),
            f"{least:,}" if least else "–",
            outcome_mark(verdict, words),
        )
        rows.append(row)
    head = (about, "claim", "expected", "measured [95%]", "n", "verdict")
    return table(head, rows, "ssssns", cards=True)


def outcome_mark(verdict: Verdict, words: Mapping[Outcome, str] = APPEARS) -> Markup:
    """The verdict's sign and word, in its colour."""
    outcome = verdict.outcome
    return Markup('<span class="verdict {}">{} {}</span>').format(
        APPEARS[outcome].replace(" ", "-"), MARKS[outcome], words.get(outcome, outcome)
    )


def outcome_counts(
    verdicts: Sequence[Verdict], words: Mapping[Outcome, str] = APPEARS
) -> dict[str, float]:
    """`claims/<outcome>`: number of claims by outcome; `words` as in `verdict_table`."""
    outcomes = [words.get(verdict.outcome, verdict.outcome) for verdict in verdicts]
    return {f"claims/{o.replace(' ', '_')}": float(n) for o, n in Counter(outcomes).items()}


def counts_of(verdicts: Sequence[Verdict], words: Mapping[Outcome, str]) -> str:
    """Number of claims by outcome: `3 hold, 1 unclear`."""
    counts = {outcome: sum(v.outcome == outcome for v in verdicts) for outcome in MARKS}
    return ", ".join(f"{n} {words.get(o, o)}" for o, n in counts.items() if n)


def _figures(verdict: Verdict) -> Markup:
    if verdict.outcome == "not measured":
        return Markup('<span class="quiet">no measurement</span>')
    line = Markup('<div><span class="quiet">{}</span> <span class="num">{}</span></div>')
    return Markup("").join(line.format(f.name, _measured(f)) for f in verdict.measured)


def _measured(figure: Measurement) -> str:
    if figure.violations is not None:
        return f"{figure.violations:,} of {figure.n:,} [≤ {number(100 * figure.high, 2)}%]"
    return f"{with_interval(figure.interval, sign=bool(figure.unit))} {figure.unit}"
