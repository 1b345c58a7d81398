"""The table of claims: what was expected, what was measured with its interval, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dynolab.claims.verdict import APPEARS, Figure, Outcome, Verdict
from dynolab.report.page import Html, table, text
from dynolab.report.style import number, with_interval

MARKS: Mapping[Outcome, str] = {
    "holds": "✓",
    "fails": "✗",
    "unclear": "?",
    "not measured": "–",
}


PLURAL: Mapping[Outcome, str] = {"holds": "appear", "fails": "do not"}
"""What several claims about trainings of language models do."""


def verdict_table(
    about: str,
    verdicts: Sequence[Verdict],
    *,
    named: Callable[[str], str] = str,
    words: Mapping[Outcome, str] = APPEARS,
) -> Html:
    """One line for each claim.

    **Arguments:**

    - `about`: heading of the first column, whose entries are `named(verdict.topic)`.
    - `words`: what outcomes are called, where not by their own names.
    """
    rows = [
        (
            named(verdict.topic),
            verdict.claim,
            verdict.expected,
            _figures(verdict),
            _number_of_cases(verdict),
            outcome_mark(verdict, words),
        )
        for verdict in verdicts
    ]
    return table((about, "claim", "expected", "measured [95%]", "n", "verdict"), rows, "ssssns")


def outcome_mark(verdict: Verdict, words: Mapping[Outcome, str] = APPEARS) -> Html:
    """The verdict's sign and word, in its colour."""
    outcome = verdict.outcome
    return Html(
        f'<span class="verdict {APPEARS[outcome].replace(" ", "-")}">'
        f"{MARKS[outcome]} {text(words.get(outcome, outcome))}</span>"
    )


def counts_of(verdicts: Sequence[Verdict], words: Mapping[Outcome, str]) -> str:
    """How many claims end how: `3 hold, 1 unclear`."""
    counts = {outcome: sum(v.outcome == outcome for v in verdicts) for outcome in MARKS}
    return ", ".join(f"{n} {words.get(o, o)}" for o, n in counts.items() if n)


def _number_of_cases(verdict: Verdict) -> str:
    least = min((figure.n for figure in verdict.measured), default=0)
    return f"{least:,}" if least else "–"


def _figures(verdict: Verdict) -> Html:
    if verdict.outcome == "not measured":
        return Html('<span class="quiet">not among what was measured</span>')
    return Html(
        "".join(
            f'<div><span class="quiet">{text(figure.name)}</span> '
            f'<span class="num">{text(_measured(figure))}</span></div>'
            for figure in verdict.measured
        )
    )


def _measured(figure: Figure) -> str:
    if figure.violations is not None:
        return f"{figure.violations:,} of {figure.n:,} [≤ {number(100 * figure.high, 2)}%]"
    return f"{with_interval(figure.interval, sign=bool(figure.unit))} {figure.unit}"
