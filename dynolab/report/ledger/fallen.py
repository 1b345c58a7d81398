"""Figure and table of the answers that fell most, and of the pairs and tokens that pulled them.

Pushes of an answer's tokens are shown as HTML: its text coloured, the strongest tokens by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup

from dynolab.data.rows import Example
from dynolab.data.sources.columns import ASSISTANT
from dynolab.report.figure import LEGEND_ABOVE, Figure, base_layout
from dynolab.report.page import PARTS, Section, Words, table
from dynolab.report.style import (
    CHOSEN,
    HISTORY,
    REJECTED,
    SPLITS,
    excerpt,
    number,
    plotly_text,
    visible_token,
)
from dynolab.results.ledger import FunctionalAccount
from dynolab.results.ledger_reader import LedgerReader, Moment, Pusher

Tokens = Sequence[tuple[str, float]]
"""Tokens in their order, each with what it did in nats."""

_SHOWN = 120
"""Tokens of a text around the one that pushed hardest."""

_LEAST = 0.05
"""Of the hardest token's push: what a token must push to be named."""

_TOKEN = Markup('<span class="token {}" style="--push:{:.2f}" title="{} nats">{}</span>').format


def summed(moments: Sequence[Moment]) -> list[tuple[str, float]]:
    """What the tokens of one answer did in all of some steps."""
    spelt = {tuple(token for token, _ in moment.tokens) for moment in moments}
    if len(spelt) != 1:  # none, or samples that differ from step to step
        return list(moments[0].tokens) if moments else []
    each = zip(*(moment.tokens for moment in moments), strict=True)
    return [(pushes[0][0], sum(nats for _, nats in pushes)) for pushes in each]


def strongest_tokens(tokens: Tokens, *, down: bool) -> str:
    """The three tokens that pushed hardest, or pulled `down` hardest, with their numbers.

    Without tokens that pushed less than a twentieth of the hardest.
    """
    most = sorted((own for own in tokens if own[1] < 0 or not down), key=lambda own: -abs(own[1]))
    return ", ".join(
        f"“{visible_token(token).strip('·')}” {number(nats, 2, sign=True)}"
        for token, nats in most[:3]
        if abs(nats) >= _LEAST * abs(most[0][1])
    )


def coloured(tokens: Tokens, text: str) -> Markup:
    """The text with a background for each token, by its share of the strongest push.

    Of a long text the part around the strongest push is shown.
    """
    words = on_text(tokens, text)
    pushes = [abs(nats) for _, nats in words]
    end = max(pushes) or 1.0
    start = max(0, min(pushes.index(max(pushes)) - _SHOWN // 2, len(words) - _SHOWN))
    shown = [
        _TOKEN("down" if nats < 0 else "up", abs(nats) / end, number(nats, 2, sign=True), word)
        for word, nats in words[start : start + _SHOWN]
    ]
    before, after = "[…] " if start else "", " […]" if start + _SHOWN < len(words) else ""
    return Markup("{}{}{}").format(before, Markup().join(shown), after)


def on_text(tokens: Tokens, text: str) -> list[tuple[str, float]]:
    """The tokens as they stand in the text; parts of one character are put together.

    A vocabulary may split a character into tokens that no reader knows. Tokens that the text does
    not hold, such as the end of the sequence, keep their own names.
    """
    if not text.strip():
        return list(tokens)
    at, held = 0, 0.0
    words: list[tuple[str, float]] = []
    unread: list[str] = []
    for token, nats in tokens:
        place = text.find(token.strip(), at)
        between = text[at:place].strip()
        if place < 0 or not token.strip() or len(between) > 4 * len(unread):
            unread.append(token)
            held += nats
            continue
        if unread:
            words.append((text[at:place] if between else " ".join(unread), held))
            unread, held = [], 0.0
        start = place if between else at
        at = place + len(token.strip())
        words.append((text[start:at], nats))
    if unread:
        words.append((text[at:] or " ".join(unread), held))
    return words


Side = Literal["chosen", "rejected"]
PAIRS = 5  # that are shown with their texts
LEFT_OUT = 20  # pairs at most that a run of `mitigation` leaves out
_BARS = (
    ("own_chosen", "its own chosen side", CHOSEN),
    ("own_rejected", "its own rejected side", REJECTED),
    ("others", "other pairs", HISTORY),
)


@dataclass(frozen=True)
class Fallen:
    """A chosen answer's change in nats, and the parts of it that pairs made by their pushes.

    `own_chosen`, `own_rejected`: both sides of the answer's own pair; `others`: all other pairs.
    Weight decay, earlier momentum and the unexplained rest are in `change` alone.
    """

    account: FunctionalAccount
    change: float
    own_chosen: float
    own_rejected: float
    others: float


def fallen_accounts(ledger: LedgerReader) -> list[FunctionalAccount]:
    """The single answers that fell, the one that fell most first.

    Where none fell: those that rose least.
    """
    singles = [account for account in ledger.accounts if account.row.single]
    singles.sort(key=lambda account: account.end - account.start)
    return [account for account in singles if account.end < account.start] or singles


def fallen_answers(ledger: LedgerReader) -> list[Fallen]:
    """The answers of `fallen_accounts`, split by who pushed."""
    found = []
    for account in fallen_accounts(ledger):
        pushers = ledger.pushers(account.lines)
        own = next((push for push in pushers if push.example == account.row.name), None)
        found.append(
            Fallen(
                account,
                change=account.end - account.start,
                own_chosen=own.from_chosen if own else 0.0,
                own_rejected=own.from_rejected if own else 0.0,
                others=sum(push.total for push in pushers if push is not own),
            )
        )
    return found


def summed_pushers(ledger: LedgerReader) -> list[Pusher]:
    """What every pair did to the answers of `fallen_accounts` together, in nats.

    The pair that lowered them most comes first. A pair that lifts one answer by as much as it
    lowers another is not among the strongest: without it they would end as low.
    """
    nothing = np.zeros(len(ledger.example))
    return ledger.pushers(sum((own.lines for own in fallen_accounts(ledger)), nothing))


def strongest_pullers(ledger: LedgerReader) -> list[str]:
    """The pairs that together lowered the fallen answers, the strongest first.

    At most `LEFT_OUT`, and a fifth of the pairs; empty without single answers.
    """
    count = min(LEFT_OUT, max(1, len(ledger.examples) // 5))
    return [push.example for push in summed_pushers(ledger)[:count] if push.total < 0]


def similar_pairs(ledger: LedgerReader, count: int) -> list[str]:
    """The pairs with an answer most like one of the fallen answers, the most alike first.

    Alike: the share of words in common, `|a ∩ b| / |a ∪ b|`, the greatest over the pair's two
    answers and the fallen answers other than its own. What text alone would name.
    """
    fallen = {}
    for account in fallen_accounts(ledger):
        if row := ledger.rows.get(account.row.name):
            fallen[row.id] = set(row.chosen.split())
    alike = {}
    for example in ledger.examples:
        row = ledger.rows.get(example)
        if row is None:
            continue
        others = [words for name, words in fallen.items() if name != example]
        answers = [set(row.chosen.split()), set((row.rejected or "").split())]
        alike[example] = max(
            (_shared_words(answer, words) for answer in answers for words in others), default=0.0
        )
    return sorted(alike, key=lambda example: -alike[example])[:count]


def _shared_words(left: set[str], right: set[str]) -> float:
    return len(left & right) / max(1, len(left | right))


def hardest_side(pusher: Pusher, moments: Sequence[Moment]) -> tuple[Side, Tokens]:
    """The side of a pair that pulled hardest, and what its tokens did.

    **Arguments:** `moments`: the hardest pulls on the answer. Only these have tokens: a side that
    has some comes before one that has none.
    """
    own = [moment for moment in moments if moment.example == pusher.example]
    by_side: dict[Side, list[Moment]] = {
        "chosen": [moment for moment in own if moment.side == "chosen"],
        "rejected": [moment for moment in own if moment.side != "chosen"],
    }
    known = {side: sum(m.nats for m in own) for side, own in by_side.items() if own}
    pulls: dict[Side, float] = {"rejected": pusher.from_rejected, "chosen": pusher.from_chosen}
    side = min(known or pulls, key=(known or pulls).__getitem__)
    return side, summed(by_side[side])


def fallen_figure(ledger: LedgerReader) -> Figure | None:
    """A bar for every fallen answer by who pushed it; beside it the five pairs that pulled most.

    None without single answers.
    """
    answers = fallen_answers(ledger)
    if not answers:
        return None
    labels = [prompt_of(own.account.row.name, ledger.rows, 32) for own in answers]
    places = list(range(len(answers)))
    plot = go.Figure(
        layout=base_layout(
            120 + 34 * len(answers),
            barmode="relative",
            bargap=0.35,
            legend=LEGEND_ABOVE | {"x": 0, "xanchor": "left"},
        )
    )
    for name, label, color in _BARS:
        plot.add_bar(
            name=label,
            orientation="h",
            y=places,
            x=[round(getattr(own, name), 4) for own in answers],
            marker_color=color,
            hovertemplate=f"{label}: %{{x:+.3g}} nats<extra>%{{customdata}}</extra>",
            customdata=[plotly_text(own.account.row.name, 24) for own in answers],
        )
    plot.update_xaxes(title_text="nats")
    plot.update_yaxes(
        autorange="reversed",
        tickvals=places,
        ticktext=[
            f"{plotly_text(label, 32)} {number(own.change, 2, sign=True)}"
            for label, own in zip(labels, answers, strict=True)
        ],
    )
    words = Words("ledger.html", ledger=ledger, answers=answers, fell=answers[0].change < 0)
    return replace(words.figure("fallen", plot), beside=_pullers(ledger))


def _pullers(ledger: LedgerReader) -> Markup:
    """The five pairs that pulled most, with their texts."""
    moments = [m for own in fallen_accounts(ledger) for m in ledger.moments.get(own.row.name, ())]
    return table(
        ("pair", "nats", "through chosen", "through rejected"),
        [
            (
                _pair(push, moments, ledger.rows),
                *(number(n, sign=True) for n in (push.total, push.from_chosen, push.from_rejected)),
            )
            for push in summed_pushers(ledger)[:PAIRS]
            if push.total < 0
        ],
        "snnn",
    )


def pusher_section(ledger: LedgerReader) -> Section | None:
    """Every fallen answer with the five pairs that pulled it down; None without single answers."""
    answers = fallen_answers(ledger)
    if not answers:
        return None
    opened = {own.account.row.split: own for own in reversed(answers)}.values()
    details = [
        PARTS.fallen(
            answer=own,
            opened=own in opened,
            split=SPLITS[own.account.row.split],
            row=ledger.rows.get(own.account.row.name),
            pullers=[
                (push, _pair(push, ledger.moments.get(own.account.row.name, ()), ledger.rows))
                for push in ledger.pushers(own.account.lines)[:PAIRS]
                if push.total < 0
            ],
        )
        for own in answers
    ]
    return Words("ledger.html", ledger=ledger, answers=answers).section("pushers", *details)


def _pair(push: Pusher, moments: Sequence[Moment], rows: Mapping[str, Example]) -> Markup:
    """A pair's id, prompt and answer that pulled, coloured where its tokens are known."""
    side, tokens = hardest_side(push, moments)
    row = rows.get(push.example)
    text = (getattr(row, side) or "") if row else ""
    pair: Markup = PARTS.pair(
        name=excerpt(push.example, 24),
        prompt=prompt_of(push.example, rows, 90),
        side=side,
        text=coloured(tokens, text) if tokens else excerpt(text, 240),
        tokens=strongest_tokens(tokens, down=True),
    )
    return pair


def prompt_of(pair: str, rows: Mapping[str, Example], length: int) -> str:
    """The end of a pair's prompt; its id where the data are not known."""
    row = rows.get(pair)
    return excerpt(row.prompt.removesuffix(ASSISTANT), length, end=True) if row else pair
