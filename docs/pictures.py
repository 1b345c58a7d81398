"""Pictures of the pages that explain, drawn at each build from the numbers they speak of."""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib as mpl
import numpy as np

mpl.use("svg")
import matplotlib.pyplot as plt

UP, DOWN, GREY = "#2468b2", "#cf4f2c", "#5d6875"
PREDICTED = np.array([0.6, 0.3, 0.1])
"""The prediction on the page of forces."""


def force(label: int, sign: int = 1) -> np.ndarray:
    """G of one softmax: the gradient of −sign · log π(label) by the logits."""
    return sign * (PREDICTED - np.eye(3)[label])


def first_order(gradient: np.ndarray) -> np.ndarray:
    """Δ log π per unit of learning rate of a step along −gradient: −A G."""
    return -(gradient - PREDICTED @ gradient)


def stepped(gradient: np.ndarray, rate: float) -> np.ndarray:
    """Δ log π, measured, of a step of the logits."""
    logits = np.log(PREDICTED) - rate * gradient
    return logits - np.log(np.exp(logits).sum()) - np.log(PREDICTED)


def three_tokens() -> None:
    """Lift b, lower c, both: what each does to the three tokens."""
    cases = {"lift b": force(1), "lower c": force(2, -1), "both": force(1) + force(2, -1)}
    _, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharey=True)
    for axis, (title, gradient) in zip(axes, cases.items(), strict=True):
        change = first_order(gradient)
        bars = axis.bar(list("abc"), change, color=[UP if x > 0 else DOWN for x in change])
        axis.bar_label(bars, [f"{x:+.2f}" for x in change], padding=2, fontsize=9)
        axis.set_title(title, fontsize=11)
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.margins(y=0.2)
    axes[0].set_ylabel("Δ log π / η, nats")


def ledger() -> None:
    """The account of a training on one softmax, beside what was measured."""
    chosen, rejected, measured = account()
    _, axis = plt.subplots(figsize=(7, 2.8))
    axis.plot(chosen, color=UP, linewidth=2, label="through the chosen token")
    axis.plot(rejected, color=DOWN, linewidth=2, label="through the rejected token")
    axis.plot(measured, color=GREY, linewidth=3, alpha=0.5, label="measured")
    axis.plot(chosen + rejected, color="black", ls=":", label="sum of the account")
    axis.axhline(0, color=GREY, linewidth=0.8)
    axis.set_xlabel("step")
    axis.set_ylabel("Δ log π of b, nats")
    axis.legend(frameon=False, fontsize=9)


def account(steps: int = 60, rate: float = 0.1, up: float = 0.15) -> tuple[np.ndarray, ...]:
    """Through chosen, through rejected, measured: log π(b) while b is lifted and c is lowered.

    The push up is `up` times the push down. Each step counts the mean of the gradients of log π(b)
    at its two ends, times what each side did to the logits.
    """
    logits, sums = np.log(PREDICTED), [np.zeros(3)]
    for _ in range(steps):
        before = np.exp(logits) / np.exp(logits).sum()
        moves = [rate * up * (np.eye(3)[1] - before), -rate * (np.eye(3)[2] - before)]
        logits = logits + moves[0] + moves[1]
        after = np.exp(logits) / np.exp(logits).sum()
        mean = np.eye(3)[1] - (before + after) / 2
        change = [mean @ moves[0], mean @ moves[1], np.log(after[1] / before[1])]
        sums.append(sums[-1] + change)
    return tuple(np.array(sums).T)


def accuracy() -> None:
    """Token b, lifted: the straight line of first order beside what a step does."""
    rates = np.linspace(0, 2, 41)
    measured = [stepped(force(1), rate)[1] for rate in rates]
    _, axis = plt.subplots(figsize=(7, 2.8))
    axis.plot(rates, measured, color=UP, linewidth=2.4, label="measured")
    axis.plot(rates, first_order(force(1))[1] * rates, color=DOWN, ls="--", label="first order")
    axis.set_xlabel("learning rate η")
    axis.set_ylabel("Δ log π of b, nats")
    axis.legend(frameon=False)


PICTURES: dict[str, Callable[[], None]] = {
    "three-tokens.svg": three_tokens,
    "ledger.svg": ledger,
    "first-order.svg": accuracy,
}


def all_pictures() -> dict[str, str]:
    """File → SVG."""
    return {name: _drawn(draw) for name, draw in PICTURES.items()}


def _drawn(draw: Callable[[], None]) -> str:
    style = {
        "font.family": "sans-serif",
        "svg.hashsalt": "manual",  # the same bytes at every build
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        draw()
        file = io.StringIO()
        plt.tight_layout()
        plt.savefig(file, format="svg", metadata={"Date": None})
        plt.close()
    return file.getvalue()
