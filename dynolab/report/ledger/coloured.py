"""Shows pushes of an answer's tokens as HTML: its text coloured, the strongest tokens by name."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from dynolab.report.text import number, visible_token
from dynolab.results.ledger import Moment

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
