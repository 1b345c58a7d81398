"""Pictures of the pages that explain, drawn at each build from the numbers they speak of.

    python docs/pictures.py

draws those of findings, from kept tables of runs, into `deploy/pictures`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("svg")
import matplotlib.pyplot as plt

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
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


def forces_of_losses() -> None:
    """G of each algorithm on three tokens: a is the favourite, b is chosen or right, c rejected.

    With β = 1 and at a margin of 0, where the policy is the reference. The derivative of a loss by
    the margin is there −σ(0) = −1/2 for DPO, −1/β for IPO and for each side of SPPO, and −1 for
    SLiC, which adds a tenth of SFT on the chosen answer. SPIN is DPO against an answer that the
    policy sampled: a.
    """
    lift, lower = force(1), force(2, -1)
    losses = {
        "SFT on b": lift,
        "DPO": 0.5 * (lift + lower),
        "IPO": lift + lower,
        "SPPO": lift + lower,
        "SLiC": (lift + lower) + 0.1 * lift,
        "SPIN": 0.5 * (lift + force(0, -1)),
        "SFT on both": lift + force(2),
        "DPO, dose 0.2": 0.5 * (lift + 0.2 * lower),
        "GRPO, b right": lift,
        "GRPO, c wrong": lower,
    }
    _, axes = plt.subplots(2, 5, figsize=(11, 4.6), sharey=True)
    for axis, (title, gradient) in zip(axes.flat, losses.items(), strict=True):
        push = np.round(-gradient, 2) + 0.0  # no −0
        bars = axis.bar(list("abc"), push, color=[UP if x > 0 else DOWN for x in push])
        axis.bar_label(bars, [f"{x:+.2f}" for x in push], padding=2, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.margins(y=0.2)
    for axis in axes[:, 0]:
        axis.set_ylabel("−G: push on the logit")


def dynamic_rate(steps: int = 120, rate: float = 0.2, beta: float = 1.0) -> None:
    """β σ(−margin) over a DPO of one softmax, beside SFT's rate, which is 1 throughout."""
    logits, reference, rates, paths = np.log(PREDICTED), np.log(PREDICTED), [], []
    for _ in range(steps):
        logp = logits - np.log(np.exp(logits).sum())
        margin = beta * ((logp - reference)[1] - (logp - reference)[2])
        rates.append(beta / (1 + np.exp(margin)))
        paths.append(logp)
        logits = logits + rate * rates[-1] * (np.eye(3)[1] - np.eye(3)[2])
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
    left.plot(rates, color=UP, linewidth=2, label="DPO: β σ(−margin)")
    left.axhline(1, color=GREY, ls="--", label="SFT")
    left.set_ylabel("dynamic learning rate")
    for name, path, color in zip("abc", np.array(paths).T, (GREY, UP, DOWN), strict=True):
        right.plot(path, color=color, linewidth=2, label=name)
    right.set_ylabel("log π, nats")
    for axis in (left, right):
        axis.set_xlabel("step of DPO, b chosen and c rejected")
        axis.legend(frameon=False, fontsize=9)


# Findings ---------------------------------------------------------------------------------------

Row = tuple[str, dict[str, Any], str]
"""A label, an estimate and its colour."""


@cache
def kept(table: str) -> dict[str, Any]:
    """The table that a run left beside its page."""
    return json.loads((DEPLOY / "studies" / "results" / f"{table}.json").read_text())


def estimate(table: str, name: str, factor: float = 1) -> dict[str, Any]:
    """A kept estimate, or a number with the ends that are kept of it."""
    numbers = kept(table)["numbers"]
    ends = {end: numbers.get(f"{name}_{end}") for end in ("low", "high")}
    known = kept(table)["estimates"].get(name) or {"mean": numbers[name], **ends}
    return {part: factor * x for part, x in known.items() if x is not None}


def forest(axis: Any, rows: Sequence[Row], label: str, at: float | None = 0) -> None:
    """Estimates with their intervals, the first on top."""
    for place, (_, known, color) in enumerate(rows):
        mean, y = known["mean"], -place
        ends = [[mean - known.get("low", mean)], [known.get("high", mean) - mean]]
        axis.errorbar([mean], [y], xerr=np.abs(ends), fmt="o", color=color, capsize=3)
        text = f" {mean:.2f}" if abs(mean) < 10 else f" {mean:.1f}"
        axis.annotate(text, (mean, y), (0, 5), textcoords="offset points", fontsize=8, ha="center")
    axis.set_yticks([-i for i in range(len(rows))], [row[0] for row in rows], fontsize=9)
    axis.set_ylim(-len(rows) + 0.4, 0.7)
    axis.set_xlabel(label, fontsize=9)
    axis.margins(x=0.15)
    if at is not None:
        axis.axvline(at, color=GREY, linewidth=0.8)


def finding_squeezing() -> None:
    """y*'s share of what rises, and how the gap y* − y⁺ changes, under SFT and DPO."""
    index, gap = "means/squeeze/index", "Δ (y* − chosen)"
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2))
    shares = [
        ("SFT, built-in", estimate("seeds-builtin", f"{index}/sft", 100), UP),
        ("DPO, built-in", estimate("seeds-builtin", f"{index}/preference", 100), DOWN),
        ("DPO, resampled, built-in", estimate("seeds-builtin", f"{index}/resampled", 100), DOWN),
        ("SFT, HH", estimate("seeds-tinystories", f"{index}/sft", 100), UP),
        ("DPO, HH", estimate("seeds-tinystories", f"{index}/preference", 100), DOWN),
    ]
    forest(left, shares, "y*'s share of the probability that rises, %")
    gaps = [
        ("SFT, built-in", estimate("reproduce-builtin", f"sft/gap/{gap}"), UP),
        ("DPO, built-in", estimate("reproduce-builtin", f"dpo/gap/{gap}"), DOWN),
        ("DPO, HH", estimate("reproduce-tinystories", f"dpo/gap/{gap}"), DOWN),
        ("SFT, Pythia-410m", estimate("authors-logs", "changes/Pythia-410m SFT/gap"), UP),
        ("DPO, Pythia-410m", estimate("authors-logs", "changes/Pythia-410m DPO checked/gap"), DOWN),
        ("SFT, Qwen1.5-0.5B", estimate("authors-logs", "changes/Qwen1.5-0.5B SFT/gap"), UP),
        ("DPO, Qwen1.5-0.5B", estimate("authors-logs", "changes/Qwen1.5-0.5B DPO/gap"), DOWN),
    ]
    forest(right, gaps, "change of the gap y* − y⁺, nats")


def finding_authors() -> None:
    """Paths of the authors' own runs since their start: the chosen answer, y* and the rejected."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 4), sharex=True)
    runs = [run for run in kept("authors-logs")["paths"] if "longer" not in run]
    for axis, kind in zip(axes, ("chosen", "argmax", "rejected"), strict=True):
        for place, run in enumerate(runs):
            path = np.array(kept("authors-logs")["paths"][run].get(kind, [np.nan, np.nan]))
            at = np.linspace(0, 1, len(path))
            style = "-" if "SFT" in run else "--" if "5e-7" in run else "-."
            axis.plot(at, path - path[0], style, color=f"C{place}", label=run)
        axis.set_title({"argmax": "y*"}.get(kind, kind), fontsize=11)
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.set_xlabel("part of the training", fontsize=9)
    axes[0].set_ylabel("Δ log π, nats")
    lines, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        lines, labels, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, frameon=False
    )


def finding_foresight() -> None:
    """How well rankings before training tell how far chosen answers fall."""
    rankings = {
        "force of all pairs": "from_all",
        "words shared with rejected answers": "word_overlap",
        "log π of the chosen answer": "chosen_logp",
        "… per token": "chosen_logp_per_token",
        "CHES": "ches",
    }
    _, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True, sharex=True)
    titles = {"seeds-builtin": "built-in world", "seeds-tinystories": "HH, story model"}
    for axis, (table, title) in zip(axes, titles.items(), strict=True):
        rows = []
        for label, name in rankings.items():
            for split, color, where in (("train", UP, ""), ("heldout", DOWN, ", held out")):
                known = estimate(table, f"foresight/foresight/{split}/{name}/spearman")
                rows.append((label + where, known, color))
        forest(axis, rows, "rank correlation with the falls (0 is chance)", 0.0)
        axis.set_title(title, fontsize=11)
        axis.set_xlim(-1.05, 1.05)


def finding_remedies() -> None:
    """What remedies change against DPO, on chosen answers and on right ones."""
    _, axes = plt.subplots(1, 3, figsize=(12, 3.4))
    for axis, name, title in zip(
        axes, ("chosen", "gap"), ("chosen, less DPO's", "gap, less DPO's"), strict=False
    ):
        rows = [
            (f"{label}, {place}", estimate(table, f"{run}/{name}/{run} − dpo"), UP)
            for table, place in (("reproduce-builtin", "built-in"), ("reproduce-tinystories", "HH"))
            for run, label in (
                ("extended", "extension"),
                ("resampled", "resampled"),
                ("on-policy", "on-policy"),
            )
        ]
        forest(axis, rows, f"Δ {title}, nats")
    doses = {
        "designed": "dose by forces",
        "dose-02": "constant dose 0.2",
        "filter-audit": "without the audit's worst",
        "filter-ches": "without CHES's worst",
    }
    right = [
        (
            f"{label}{', held out' if split == 'heldout' else ''}",
            estimate("mitigation-doses", f"differences/{run}/{split}/right", 100),
            DOWN if split == "heldout" else UP,
        )
        for split in ("train", "heldout")
        for run, label in doses.items()
    ]
    forest(axes[2], right, "right answers at equal margins, points")


def finding_groups() -> None:
    """pass@1 and pass@16 where each prompt is solved by one of two strategies."""
    runs = {
        "grpo": "GRPO",
        "simko": "SimKO (CaSP)",
        "simko-wide": "SimKO, share 0.3",
        "entropy": "entropy bonus",
        "positives": "right answers alone",
    }
    _, axes = plt.subplots(1, 2, figsize=(10, 2.8), sharey=True)
    for axis, k in zip(axes, (1, 16), strict=True):
        rows = [
            (label, estimate("grpo-strategies", f"changes/{run}/heldout/pass_at_{k}", 100), UP)
            for run, label in runs.items()
        ]
        forest(axis, rows, f"change of pass@{k} on held-out prompts, points")


FINDINGS: dict[str, Callable[[], None]] = {
    "finding-squeezing.svg": finding_squeezing,
    "finding-authors.svg": finding_authors,
    "finding-foresight.svg": finding_foresight,
    "finding-remedies.svg": finding_remedies,
    "finding-groups.svg": finding_groups,
}


PICTURES: dict[str, Callable[[], None]] = {
    "three-tokens.svg": three_tokens,
    "ledger.svg": ledger,
    "first-order.svg": accuracy,
    "losses.svg": forces_of_losses,
    "dynamic-rate.svg": dynamic_rate,
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
        plt.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
        plt.close()
    return file.getvalue()


if __name__ == "__main__":
    for name, draw in FINDINGS.items():
        (DEPLOY / "pictures" / name).write_text(_drawn(draw))
