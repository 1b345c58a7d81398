"""A pair's answer above the answer that it pushed, as two lines of text whose tokens light others.

`assets/lit.js` colours the other line by the row or column of the token that is pointed at or
focused, and by the strongest row as the page arrives, and where it is printed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from dash import html
from jaxtyping import Float
from numpy import ndarray

from dynolab.explorer.page import parts
from dynolab.report.style import style_of, visible_token
from dynolab.results.study import TokenMap

TOKENS = 240
"""Of a line that are drawn; the map below has the others."""

READING = (
    "Point at a token, or reach it by Tab and arrows: the other line shows what pushed it, or what "
    "it pushed. Green with a dotted line raises, brown with a full line lowers; an arc is as thick "
    "as the push. A click or Enter pins it."
)


def lit_lines(token_map: TokenMap) -> Any:
    """The pair's rejected answer, or its chosen one in training without rejected ones, above the
    answer that the map observes.
    """
    split = len(token_map.chosen_tokens)
    side, pushing = "y⁻", token_map.rejected_tokens
    columns = slice(split, None)
    if not pushing:
        side, pushing, columns = "y⁺", token_map.chosen_tokens, slice(split)
    force = np.nan_to_num(np.array(token_map.force)[:TOKENS, columns][:, :TOKENS])
    if not force.any():
        return None
    strongest = int(np.abs(force.sum(1)).argmax())
    pushing, observed = (
        [visible_token(token) for token in texts[:TOKENS]]
        for texts in (pushing, token_map.observed_tokens)
    )
    of_observed = [
        _said(token, "the answer", f"by {side}", "by", row, pushing)
        for token, row in zip(observed, force, strict=True)
    ]
    of_pushing = [
        _said(token, side, "onto the answer", "onto", column, observed)
        for token, column in zip(pushing, force.T, strict=True)
    ]
    data: dict[str, Any] = {
        "data-nats": json.dumps([[float(f"{nats:.3g}") for nats in row] for row in force]),
        "data-strongest": str(strongest),
    }
    pair = f"{side} of {token_map.updating_id}"
    answer = f"{style_of(token_map.observed_kind).label} answer of {token_map.observed_id}"
    return html.Figure(
        [
            html.Figcaption(html.P(of_observed[strongest], className="message", role="status")),
            html.Div(pair, className="label"),
            _line(pair, pushing, of_pushing, 0),
            html.Div(className="arcs"),
            _line(answer, observed, of_observed, strongest),
            html.Div(answer, className="label"),
            html.P(READING, className="note"),
        ],
        className="lit",
        **data,
    )


def _said(
    token: str,
    line: str,
    other: str,
    preposition: str,
    nats: Float[ndarray, " tokens"],
    others: Sequence[str],
) -> str:
    """What a token's row or column says: its sum, and what does most in the other line."""
    most = int(np.abs(nats).argmax())
    return (
        f"“{token}” of {line}: {parts.nats(float(nats.sum()))} nats {other}, most {preposition} "
        f"“{others[most]}” ({parts.nats(float(nats[most]))})."
    )


def _line(name: str, texts: Sequence[str], said: Sequence[str], entered: int) -> Any:
    """Tokens that can be pointed at and pinned; `entered`: the one that Tab reaches."""
    pressed: dict[str, Any] = {"aria-pressed": "false"}
    tokens = [
        html.Span(
            text,
            className="token",
            role="button",
            tabIndex=0 if place == entered else -1,
            title=sentence,
            **pressed,
        )
        for place, (text, sentence) in enumerate(zip(texts, said, strict=True))
    ]
    label: dict[str, Any] = {"aria-label": name}
    return html.Div(tokens, className="line", role="group", dir="auto", **label)
