"""Shows claims: expectation, measurement with its interval, verdict; and counts verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from dynolab.claims.verdict import APPEARS, Measurement, Outcome, Verdict
from dynolab.report.page import table
from dynolab.report.style import number, with_interval

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
    rows = [
        (
            named(verdict.topic),
            verdict.claim,
            verdict.expected,
            _figures(verdict),
            f"{least:,}"
            if (least := min((figure.n for figure in verdict.measured), default=0))
            else "–",
            outcome_mark(verdict, words),
        )
        for verdict in verdicts
    ]
    return table((about, "claim", "expected", "measured [95%]", "n", "verdict"), rows, "ssssns")


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
