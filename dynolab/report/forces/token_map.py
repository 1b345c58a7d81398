"""The token force map: which updating token pushed which observed token, and by how much."""

from __future__ import annotations

import numpy as np

from dynolab.report.figure import Figure
from dynolab.report.forces.token_map_plot import token_map_plot
from dynolab.report.ledger.named_tokens import strongest_tokens
from dynolab.report.style import objective_name
from dynolab.report.text import number
from dynolab.results.study import TokenMap

READING = (
    "A cell: first-order push on the row's token from the column's token. Green raises, brown "
    "lowers. Above the cells are sums of columns, on their right sums of rows: over y⁺, over y⁻ "
    "and over both. Of many tokens those with the largest sums are named."
)

ONE_STEP = (
    "It is what this step did at its own weights; the account’s numbers of the pair differ, as "
    "they also count its momentum in later steps."
)
"""How a map and an account differ."""


def hardest_pull_figure(token_map: TokenMap) -> Figure | None:
    """The map of the hardest pull of an account on the answer that fell most."""
    about = f"It is the hardest pull on the answer that fell most. {ONE_STEP}"
    return token_map_figure(token_map, about)


def token_map_figure(token_map: TokenMap, about: str = "") -> Figure | None:
    """Rows: observed answer; columns: updating y⁺ then y⁻; margins: sums of each side.

    **Arguments:** `about`: a sentence on the observed answer.
    """
    if not token_map.observed_tokens:
        return None
    return Figure(
        "token-map",
        "Which token pushed which",
        f"{token_map_message(token_map)} {about}".strip(),
        f"{_step(token_map)}: the update by “{token_map.updating_id}” on {_whose(token_map)} "
        f"{token_map.observed_kind} answer. {READING}",
        token_map_plot(token_map),
    )


def _step(token_map: TokenMap) -> str:
    rate = f"learning rate {number(token_map.learning_rate)}"
    if token_map.step is None:
        return f"A gradient step of {objective_name(token_map.stage)}, {rate}"
    return f"{objective_name(token_map.stage)} step {token_map.step}, {rate}"


def _whose(token_map: TokenMap) -> str:
    return (
        "its own"
        if token_map.observed_id == token_map.updating_id
        else f"“{token_map.observed_id}”'s"
    )


def token_map_message(token_map: TokenMap) -> str:
    """What each side of the pair does, and which token does most of it."""
    force, split = np.array(token_map.force, dtype=float), len(token_map.chosen_tokens)
    plus, minus = float(np.nansum(force[:, :split])), float(np.nansum(force[:, split:]))
    answer = f"{_whose(token_map)} {token_map.observed_kind} answer"
    text = f"y⁺ of “{token_map.updating_id}” pushes {answer} by {number(plus, sign=True)} nats"
    if split < force.shape[1]:
        text += f", its y⁻ by {number(minus, sign=True)} nats"
    if not np.isfinite(force).any():
        return f"{text}."
    both = token_map.chosen_tokens + token_map.rejected_tokens
    side = slice(0, split) if abs(plus) >= abs(minus) else slice(split, None)
    sums = np.nansum(force, axis=0)
    tokens = list(zip(both[side], sums[side].tolist(), strict=True))
    through = strongest_tokens(tokens, down=sums[side].sum() < 0)
    return f"{text}. The tokens of its {'y⁺' if side.start == 0 else 'y⁻'} that do most: {through}."
