"""What moved an answer: its lines, and where its change came from in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import html

from dynolab.data.rows import ProbeRow
from dynolab.explorer.lines import CHOSEN, REJECTED, Lines, lines_to_answer
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.training import Training


@dataclass(frozen=True)
class Moved:
    """The lines to an answer, and whether they are the ledger's or of recorded `steps` alone."""

    lines: Lines
    stored: bool
    steps: Sequence[int]


def what_moved(
    training: Training, row: ProbeRow, state: State, recorded: Sequence[int]
) -> Moved | None:
    """The lines to an answer: the ledger's, else those of recorded steps; None without either."""
    if state.metric == "optimizer":
        stored = lines_to_answer(training.ledger, row, state.step)
        if stored is not None:
            return Moved(stored, True, recorded)
    if not recorded:
        return None
    steps = recorded if state.step is None else [nearest(recorded, state.step)]
    return Moved(training.lines_to(row, steps, state.asked), False, steps)


def nearest(steps: Sequence[int], step: int) -> int:
    """The step of some steps that is nearest to another."""
    return min(steps, key=lambda other: abs(other - step))


def step_of_map(recorded: Sequence[int], lines: Lines, state: State) -> int:
    """The recorded step of maps: the chosen one, else where the pair pushed hardest, or nearest."""
    if state.step is not None:
        return nearest(recorded, state.step)
    among = lines.pair == state.pair if state.pair else lines.step >= 0
    if not among.any():
        return recorded[-1]
    pushes = {
        step: abs(lines.nats[among & (lines.step == step)].sum()) for step in set(lines.step[among])
    }
    return nearest(recorded, max(pushes, key=lambda step: pushes[step]))


def sentence(moved: Moved, state: State) -> Any:
    """Where the change came from."""
    lines = moved.lines
    chosen, rejected = (float(lines.through(side)[0]) for side in (CHOSEN, REJECTED))
    apart = [
        f"{parts.nats(float(nats[0]))} {name}"
        for name, nats in lines.apart.items()
        if abs(nats[0]) > 5e-4
    ]
    if moved.stored:
        when = "over the whole training" if state.step is None else f"at step {state.step}"
    else:
        listed = ", ".join(map(str, moved.steps))
        when = f"at recorded step{'s' if len(moved.steps) > 1 else ''} {listed}"
    sums = ", ".join(
        [
            f"{parts.nats(chosen)} through chosen answers",
            f"{parts.nats(rejected)} through rejected ones",
            *apart,
        ]
    )
    rest = "is left over"
    if state.metric == "gradient":  # the change is measured over the optimizer's step
        rest = "is what the optimizer’s step did beyond a gradient step"
    elif moved.stored and state.step is not None:
        rest = "is left over, or what momentum carried here from other steps and on to them"
    return html.P(
        f"{parts.nats(float(lines.measured[0]))} nats {when}: {sums}; "
        f"{parts.nats(float(lines.residual[0]))} {rest}.",
        className="message",
    )
