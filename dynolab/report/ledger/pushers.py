"""Who pulled an answer down, and who held it up: the strongest pushers of single answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from markupsafe import Markup

from dynolab.data.rows import Example
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger, Moment, Pusher
from dynolab.report.ledger.coloured import coloured
from dynolab.report.ledger.fallen import fallen_accounts, hardest_side, these_answers
from dynolab.report.ledger.named_pairs import named_pair
from dynolab.report.ledger.named_tokens import strongest_tokens
from dynolab.report.page import Section, section, table
from dynolab.report.style import SPLITS
from dynolab.report.text import excerpt, join, number

CULPRITS = 5
EACH_WAY = 20
MOMENTS = 10
HEAD = ("example", "nats", "its chosen", "its rejected", "at steps", "prompt", "chosen", "rejected")
_NO_TOKENS = Markup(
    '<span class="quiet">not coloured: none of its steps is among the six that pulled this '
    "answer hardest, whose tokens are kept</span>"
)
_TEXT = 240  # characters of an answer that is not coloured
_CONCENTRATED = 2  # times the share of as many examples that pull alike
_MANY = 3  # one in so many of the named examples, at one step, is worth a word
_NAMED = 3  # examples, in the sentence above all
_STEPS = 4  # of an example that are named one by one

_SUMMARY = Markup(
    '<summary><span class="num">{}</span> nats, {}: “{}” <span class="quiet">pulled down by '
    "{}</span></summary>"
)
_ANSWER = Markup(
    '<p class="quiet">{}</p><blockquote dir="auto">{}</blockquote>'
    "<p>Its own pair {}; the five that pulled it down hardest:</p>"
)
_CULPRIT = Markup(
    '<li><b class="num">{}</b> by <b>{}</b> {}, {} through its rejected and {} through '
    'its chosen answer. <span class="quiet">{} Its {} answer:</span>'
    '<blockquote dir="auto">{}</blockquote>{}</li>'
)


def pusher_section(ledger: Ledger) -> Section | None:
    """The answers with an account of their own, each with its strongest pushers and their texts."""
    singles = fallen_accounts(ledger)
    if not singles:
        return None
    opened = {account.row.split: account.row.name for account in reversed(singles)}.values()
    return section(
        "pushers",
        "Who pulled these answers down",
        _message(singles, ledger),
        *(_answer(account, ledger, opened=account.row.name in opened) for account in singles),
        note="The chosen answers that fell most over the training, held-out ones too. Numbers are "
        f"nats, sums of the example's lines over {ledger.span}. Coloured: what its tokens did in "
        "the pulls that are among the six hardest on this answer, brown down and green up; point "
        "at one for its number. All of it is of one run: how hard a pair pulls depends on when it "
        "is drawn, and another seed draws in another order.",
    )


def _answer(account: FunctionalAccount, ledger: Ledger, *, opened: bool) -> Markup:
    """A fallen answer: its text, the five culprits with theirs, and more of them in a table."""
    name, pushers = account.row.name, ledger.pushers(account)
    moments = ledger.moments.get(name, ())
    own = ledger.rows.get(name)
    culprits = [pusher for pusher in pushers[:CULPRITS] if pusher.total < 0]
    parts = [
        _SUMMARY.format(
            number(account.end - account.start, sign=True),
            SPLITS[account.row.split],
            excerpt(own.prompt, 60, end=True) if own else name,
            _strongest(culprits[:3], ledger.rows),
        ),
        _ANSWER.format(
            name,
            excerpt(own.chosen, _TEXT) if own else "–",
            _own_pair([p.total for p in pushers if p.example == name]),
        ),
        Markup("<ol>{}</ol>").format(
            Markup().join(_culprit(pusher, ledger.rows, moments) for pusher in culprits)
        ),
        _more(pushers, moments, ledger.rows),
    ]
    shown = Markup(" open") if opened else ""
    return Markup('<details class="more fallen"{}>{}</details>').format(shown, Markup().join(parts))


def _own_pair(totals: Sequence[float]) -> str:
    return f"did {number(sum(totals), sign=True)}" if totals else "was not trained on"


def _culprit(pusher: Pusher, rows: Mapping[str, Example], moments: Sequence[Moment]) -> Markup:
    """An example that pulled an answer down: how much, when, and through which tokens."""
    side, tokens = hardest_side(pusher, moments)
    row = rows.get(pusher.example)
    text = (getattr(row, side) or "") if row else ""
    through = (
        Markup('<span class="quiet">most through {}</span>').format(
            strongest_tokens(tokens, down=True)
        )
        if tokens
        else _NO_TOKENS
    )
    return _CULPRIT.format(
        number(pusher.total, sign=True),
        pusher.example,
        _when(pusher.steps),
        number(pusher.from_rejected, 2, sign=True),
        number(pusher.from_chosen, 2, sign=True),
        excerpt(row.prompt, 90, end=True) if row else "",
        side,
        coloured(tokens, text) if tokens else excerpt(text, _TEXT),
        through,
    )


def _when(steps: Sequence[int]) -> str:
    """At which steps, where they can be told at a glance."""
    if len(steps) == 1:
        return f"at step {steps[0]}"
    if len(steps) <= _STEPS:
        return f"at steps {join(list(map(str, steps)))}"
    return f"in {len(steps)} steps from {min(steps)} to {max(steps)}"


def _strongest(pushers: Sequence[Pusher], rows: Mapping[str, Example]) -> Markup:
    return Markup(", ").join(
        Markup("{} ({})").format(named_pair(p.example, rows), number(p.total, 2, sign=True))
        for p in pushers
    )


def _more(
    pushers: Sequence[Pusher], moments: Sequence[Moment], rows: Mapping[str, Example]
) -> Markup:
    """A fold-out with the strongest pushers each way, and the strongest moments by token."""
    summary = f"The strongest {EACH_WAY} examples each way, and the hardest steps"
    parts = [_pusher_table(pushers, rows)]
    if moments:
        parts.append(_moment_table(moments[:MOMENTS], rows))
    return Markup('<details class="more"><summary>{}</summary>{}</details>').format(
        summary, Markup().join(parts)
    )


def _pusher_table(pushers: Sequence[Pusher], rows: Mapping[str, Example]) -> Markup:
    strongest = {p.example: p for p in (*pushers[:EACH_WAY], *pushers[: -EACH_WAY - 1 : -1])}
    lines = []
    for pusher in strongest.values():
        row = rows.get(pusher.example)
        texts = (row.prompt, row.chosen, row.rejected) if row else ("", "", "")
        lines.append(
            (
                pusher.example,
                number(pusher.total, sign=True),
                number(pusher.from_chosen, sign=True),
                number(pusher.from_rejected, sign=True),
                ", ".join(map(str, pusher.steps)),
                *(excerpt(text or "–", 60) for text in texts),
            )
        )
    return table(HEAD, lines, "snnnssss")


def _moment_table(moments: Sequence[Moment], rows: Mapping[str, Example]) -> Markup:
    """Single lines of the ledger, token by token."""
    lines = [
        (
            moment.step,
            named_pair(moment.example, rows),
            moment.side,
            number(moment.nats, sign=True),
            strongest_tokens(moment.tokens, 12),
        )
        for moment in moments
    ]
    return table(("step", "example", "answer", "nats", "through its tokens"), lines, "nssns")


def _message(singles: Sequence[FunctionalAccount], ledger: Ledger) -> str:
    top, even = (
        100 * sum(shares) / len(singles)
        for shares in zip(*map(partial(_shares, ledger), singles), strict=True)
    )
    hardest = Counter(ledger.pushers(account)[0].example for account in singles)
    named = [f"{example} on {count}" for example, count in hardest.most_common(_NAMED)]
    spread = (
        " The pull is spread over many pairs: a smaller push on all rejected answers promises more "
        "than leaving out a few."
        if top < _CONCENTRATED * even
        else ""
    )
    return (
        f"Of all that pulled {these_answers(len(singles))} down, the {EACH_WAY} strongest examples "
        f"did {top:.0f} % on average; if all had pulled alike, any {EACH_WAY} would have done "
        f"{even:.0f} %.{spread} The hardest pull came from {join(named)} of the answers."
        + _one_step(singles, ledger)
    )


def _shares(ledger: Ledger, account: FunctionalAccount) -> tuple[float, float]:
    """The strongest examples' share of all that pulled down, and what it were if all were alike."""
    totals = ledger.by_example(account)
    down = np.sort(totals[totals < 0])
    if not len(down):
        return 0.0, 0.0
    return float(down[:EACH_WAY].sum() / down.sum()), min(1.0, EACH_WAY / len(down))


def _one_step(singles: Sequence[FunctionalAccount], ledger: Ledger) -> str:
    """A step at which many of the named examples pulled: they are the rows of one batch."""
    culprits = [pusher for account in singles for pusher in ledger.pushers(account)[:CULPRITS]]
    alone = Counter(culprit.steps for culprit in culprits if culprit.total < 0)
    steps, count = max(alone.items(), key=lambda item: item[1], default=((), 0))
    if len(steps) != 1 or count * _MANY < len(culprits):
        return ""
    return (
        f" Of the {len(culprits)} named below, {count} pulled at step {steps[0]} alone: another "
        "order of the batches names others"
        + ("; more preference.warmup_steps make the first step smaller." if steps[0] == 0 else ".")
    )
