"""Figure and table of the answers that fell most, and of the pairs and tokens that pulled them.

Pushes of an answer's tokens are shown as HTML: its text coloured, the strongest tokens by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from markupsafe import Markup

from dynolab.audit.word_overlap import shared_words
from dynolab.data.rows import Example
from dynolab.data.sources.columns import ASSISTANT
from dynolab.report.figure import LEGEND_ABOVE, Figure, empty_plot
from dynolab.report.page import PARTS, Section, Words, table
from dynolab.report.style import (
    CHOSEN,
    HISTORY,
    REJECTED,
    SPLITS,
    excerpt,
    join,
    number,
    numbers,
    percent,
    plotly_text,
    visible_token,
)
from dynolab.results.audit import Band
from dynolab.results.ledger import FunctionalAccount
from dynolab.results.ledger_reader import LedgerReader, Moment, Pulls, Pusher
from dynolab.statistics import column

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
    total = np.sum([[nats for _, nats in moment.tokens] for moment in moments], axis=0)
    return list(zip(spelt.pop(), total.tolist(), strict=True))


def strongest_tokens(tokens: Tokens, *, down: bool) -> str:
    """The three tokens that pushed hardest, or pulled `down` hardest, with their numbers.

    Without tokens that pushed less than a twentieth of the hardest.
    """
    pushes = [(abs(nats), nats, token) for token, nats in tokens if nats < 0 or not down]
    pushes.sort(key=lambda push: -push[0])
    named = []
    for size, nats, token in pushes[:3]:
        if size >= _LEAST * pushes[0][0]:
            named.append(f"“{visible_token(token).strip('·')}” {number(nats, 2, sign=True)}")
    return ", ".join(named)


def coloured(tokens: Tokens, text: str) -> Markup:
    """The text with a background for each token, by its share of the strongest push.

    Of a long text the part around the strongest push is shown.
    """
    words = on_text(tokens, text)
    pushes = [abs(nats) for _, nats in words]
    end = max(pushes) or 1.0
    start = max(0, min(pushes.index(max(pushes)) - _SHOWN // 2, len(words) - _SHOWN))
    shown = []
    for word, nats in words[start : start + _SHOWN]:
        direction, nats_text = "down" if nats < 0 else "up", number(nats, 2, sign=True)
        shown.append(_TOKEN(direction, abs(nats) / end, nats_text, word))
    before, after = "[…] " if start else "", " […]" if start + _SHOWN < len(words) else ""
    return Markup("{}{}{}").format(before, Markup().join(shown), after)


def on_text(tokens: Tokens, text: str) -> list[tuple[str, float]]:
    """The tokens as they stand in the text; parts of one character are put together.

    A vocabulary may split a character into tokens that no reader knows. Tokens that the text does
    not hold, such as the end of the sequence, keep their own names.
    """
    if not text.strip():
        return list(tokens)
    at = 0
    words: list[tuple[str, float]] = []
    # Tokens that the text does not hold, until one that it holds, and what they did.
    unread: list[str] = []
    unread_nats = 0.0
    for token, nats in tokens:
        place = text.find(token.strip(), at)
        between = text[at:place].strip()
        if place < 0 or not token.strip() or len(between) > 4 * len(unread):
            unread.append(token)
            unread_nats += nats
            continue
        if unread:
            words.append((text[at:place] if between else " ".join(unread), unread_nats))
            unread, unread_nats = [], 0.0
        start = place if between else at
        at = place + len(token.strip())
        words.append((text[start:at], nats))
    if unread:
        words.append((text[at:] or " ".join(unread), unread_nats))
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
    answers = []
    for account in fallen_accounts(ledger):
        own_chosen = own_rejected = others = 0.0
        for push in ledger.pushers(account.lines):
            if push.example == account.row.name:
                own_chosen, own_rejected = push.from_chosen, push.from_rejected
            else:
                others += push.total
        change = account.end - account.start
        answers.append(Fallen(account, change, own_chosen, own_rejected, others))
    return answers


def summed_pushers(ledger: LedgerReader) -> list[Pusher]:
    """What every pair did to the answers of `fallen_accounts` together, in nats.

    The pair that lowered them most comes first. A pair that lifts one answer by as much as it
    lowers another is not among the strongest: without it they would end as low.
    """
    total = np.zeros(len(ledger.example))
    for account in fallen_accounts(ledger):
        total = total + account.lines
    return ledger.pushers(total)


def half_of_a_fall(pulls: Pulls) -> str:
    """How many pairs made half of a fall, as a sentence; empty without any."""
    if pulls.concentrated:
        named = join([push.example for push in pulls.pushers[: pulls.half]])
        return f"Half of the pull down is by {named}, of {len(pulls.pushers)} pairs that pulled."
    if not pulls.half:
        return ""
    return (
        "No single pair did it: half of the pull down needs "
        f"{pulls.half} of {len(pulls.pushers)} pairs."
    )


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
            (shared_words(answer, words) for answer in answers for words in others), default=0.0
        )
    return sorted(alike, key=lambda example: -alike[example])[:count]


def hardest_side(pusher: Pusher, moments: Sequence[Moment]) -> tuple[Side, Tokens]:
    """The side of a pair that pulled hardest, and what its tokens did.

    **Arguments:** `moments`: the hardest pulls on the answer. Only these have tokens: a side that
    has some comes before one that has none.
    """
    by_side: dict[Side, list[Moment]] = {"chosen": [], "rejected": []}
    of_moments: dict[Side, float] = {}
    for moment in moments:
        if moment.example == pusher.example:
            side: Side = "chosen" if moment.side == "chosen" else "rejected"
            by_side[side].append(moment)
            of_moments[side] = of_moments.get(side, 0.0) + moment.nats
    of_pair: dict[Side, float] = {"rejected": pusher.from_rejected, "chosen": pusher.from_chosen}
    pulls = of_moments or of_pair
    hardest = min(pulls, key=pulls.__getitem__)
    return hardest, summed(by_side[hardest])


def fallen_figure(ledger: LedgerReader, bands: Mapping[str, Band] | None = None) -> Figure | None:
    """A bar for every fallen answer by who pushed it; beside it the five pairs that pulled most.

    None without single answers.

    **Arguments:** `bands`: of the training's pairs, by an audit before it.
    """
    answers = fallen_answers(ledger)
    if not answers:
        return None
    places = list(range(len(answers)))
    labels, names = [], []
    for answer in answers:
        name = answer.account.row.name
        names.append(plotly_text(name, 24))
        label = plotly_text(prompt_of(name, ledger.rows, 32), 32)
        labels.append(f"{label} {number(answer.change, 2, sign=True)}")
    plot = empty_plot(
        120 + 34 * len(answers),
        barmode="relative",
        bargap=0.35,
        legend=LEGEND_ABOVE | {"x": 0, "xanchor": "left"},
    )
    for part, label, color in _BARS:
        plot.add_bar(
            name=label,
            orientation="h",
            y=places,
            x=column(answers, part).round(4).tolist(),
            marker_color=color,
            hovertemplate=f"{label}: %{{x:+.3g}} nats<extra>%{{customdata}}</extra>",
            customdata=names,
        )
    plot.update_xaxes(title_text="nats")
    plot.update_yaxes(autorange="reversed", tickvals=places, ticktext=labels)
    half = half_of_a_fall(Pulls.down(summed_pushers(ledger)))
    fell = answers[0].change < 0
    words = Words("ledger.html", ledger=ledger, answers=answers, fell=fell, half=half, bands=bands)
    return replace(words.figure("fallen", plot), beside=_pullers(ledger, bands or {}))


def _pullers(ledger: LedgerReader, bands: Mapping[str, Band]) -> Markup:
    """The five pairs that pulled most, with their texts and, where known, their bands."""
    moments: list[Moment] = []
    for account in fallen_accounts(ledger):
        moments += ledger.moments.get(account.row.name, ())
    rows = []
    for push, share in strongest(summed_pushers(ledger)):
        nats = numbers(push.total, push.from_chosen, push.from_rejected, sign=True)
        pair = _pair(push, moments, ledger.rows, bands.get(push.example))
        rows.append((pair, percent(share), *nats))
    return table(("pair", "share", "nats", "through chosen", "through rejected"), rows, "snnnn")


def strongest(pushers: Sequence[Pusher]) -> list[tuple[Pusher, float]]:
    """The first `PAIRS` that pull down, and the share of each in what all of these do."""
    pulls = Pulls.down(pushers)
    return list(zip(pulls.pushers[:PAIRS], pulls.shares.tolist(), strict=False))


def pusher_section(ledger: LedgerReader) -> Section | None:
    """Every fallen answer with the five pairs that pulled it down; None without single answers."""
    answers = fallen_answers(ledger)
    if not answers:
        return None
    details = []
    opened_splits: set[str] = set()
    for answer in answers:
        name, split = answer.account.row.name, answer.account.row.split
        moments = ledger.moments.get(name, ())
        pushers = ledger.pushers(answer.account.lines)
        pullers = []
        for push, share in strongest(pushers):
            pullers.append((push, percent(share), _pair(push, moments, ledger.rows)))
        detail = PARTS.fallen(
            answer=answer,
            opened=split not in opened_splits,  # the first answer of every split
            split=SPLITS[split],
            row=ledger.rows.get(name),
            pullers=pullers,
            pulls=Pulls.down(pushers),
        )
        opened_splits.add(split)
        details.append(detail)
    return Words("ledger.html", ledger=ledger, answers=answers).section("pushers", *details)


def _pair(
    push: Pusher,
    moments: Sequence[Moment],
    rows: Mapping[str, Example],
    band: Band | None = None,
) -> Markup:
    """A pair's id, band, prompt and answer that pulled, coloured where its tokens are known."""
    side, tokens = hardest_side(push, moments)
    row = rows.get(push.example)
    text = (getattr(row, side) or "") if row else ""
    pair: Markup = PARTS.pair(
        name=excerpt(push.example, 24),
        band=band,
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
