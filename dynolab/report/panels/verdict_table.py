"""The table of claims: what was expected, what was measured with its interval, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dynolab.claims.study import Counted, Outcome, Quantity, Verdict
from dynolab.report.page import Html, table, text
from dynolab.report.style import number, with_interval

MARKS: Mapping[Outcome, str] = {
    "appears": "✓",
    "does not": "✗",
    "unclear": "?",
    "not measured": "–",
}


PLURAL: Mapping[Outcome, str] = {"appears": "appear", "does not": "do not"}
"""What several claims do."""


def verdict_table(
    about: str,
    verdicts: Sequence[Verdict],
    *,
    named: Callable[[str], str] = str,
    words: Mapping[Outcome, str] | None = None,
) -> Html:
    """One line for each claim.

    **Arguments:**

    - `about`: heading of the first column, whose entries are `named(verdict.stage)`.
    - `words`: what outcomes are called here, where not by their own names.
    """
    rows = [
        (
            named(verdict.stage),
            verdict.claim,
            verdict.expected,
            _quantities(verdict),
            _number_of_cases(verdict),
            Html(
                f'<span class="verdict {verdict.outcome.replace(" ", "-")}">'
                f"{MARKS[verdict.outcome]} "
                f"{text((words or {}).get(verdict.outcome, verdict.outcome))}</span>"
            ),
        )
        for verdict in verdicts
    ]
    return table((about, "claim", "expected", "measured [95%]", "n", "verdict"), rows, "ssssns")


def counts_of(verdicts: Sequence[Verdict], words: Mapping[Outcome, str]) -> str:
    """How many claims end how: `3 hold, 1 unclear`."""
    counts = {outcome: sum(v.outcome == outcome for v in verdicts) for outcome in MARKS}
    return ", ".join(f"{n} {words.get(o, o)}" for o, n in counts.items() if n)


def _number_of_cases(verdict: Verdict) -> str:
    least = min((q.interval.n for q in verdict.quantities), default=0)
    return f"{least:,}" if least else "–"


def _quantities(verdict: Verdict) -> Html:
    if verdict.outcome == "not measured":
        return Html('<span class="quiet">not among what was measured</span>')
    return Html(
        "".join(
            f'<div><span class="quiet">{text(q.name)}</span> '
            f'<span class="num">{text(_measured(q))}</span></div>'
            for q in verdict.quantities
        )
    )


def _measured(quantity: Quantity | Counted) -> str:
    if isinstance(quantity, Counted):
        upper = number(100 * quantity.interval.high, 2)
        return f"{quantity.violations:,} of {quantity.cases:,} [≤ {upper}%]"
    return f"{with_interval(quantity.interval, sign=bool(quantity.unit))} {quantity.unit}"
