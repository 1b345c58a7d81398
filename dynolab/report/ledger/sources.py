"""The papers' accumulated influence beside what answers really did."""

from __future__ import annotations

import numpy as np
import torch

from dynolab.forces.influence import moving_average
from dynolab.report.figure import Figure, subplots
from dynolab.report.inputs.ledger import Ledger
from dynolab.report.style import arm_style
from dynolab.report.text import number, plotly_text
from dynolab.statistics import rank_correlation


def sources_figure(ledger: Ledger) -> Figure | None:
    """Path and accumulated influence of the answers with an account of their own.

    None where steps were drawn: a running sum needs all of them.
    """
    singles = [account for account in ledger.accounts if account.row.name in ledger.sign_delta]
    if not singles or ledger.sampled:
        return None
    plot = subplots(
        ["Δ log π, measured", "accumulated SignDelta"],
        420,
        x={"title_text": "step"},
        y_title="nats",
        showlegend=True,
    )
    ends = []
    for place, account in enumerate(singles):
        color, dash = arm_style(place)
        influence = accumulated(ledger.sign_delta[account.row.name])
        moved = account.path - account.path[0]
        ends.append((moved[-1], influence[-1]))
        for col, values in ((1, moved), (2, influence)):
            plot.add_scatter(
                x=np.arange(len(values)),
                y=np.round(values, 5),
                mode="lines",
                name=plotly_text(account.row.name, 16),
                legendgroup=account.row.name,
                showlegend=col == 1,
                line={"color": color, "dash": dash, "width": 1.6},
                row=1,
                col=col,
            )
    agreement = float(rank_correlation(*np.array(ends).T)) if len(ends) > 2 else float("nan")
    return Figure(
        "ledger-sources",
        "The papers’ accumulated influence beside it",
        f"Over the {len(singles)} answers that fell most, the rank correlation of accumulated "
        f"SignDelta with the real change is {number(agreement, 2)}.",
        "SignDelta of a step is the mean change of the answer’s tokens over the size of A and of "
        "the push, as Ren & Sutherland compute it (arXiv 2407.10490); accumulated influence is the "
        "running sum of its moving average (0.9). It has no unit and does not add up to the "
        "change. LBK and a bound on ‖K‖ stand beside it in sources.parquet.",
        plot,
    )


def accumulated(sign_delta: np.ndarray) -> np.ndarray:
    """The running sum of the moving average, zero at first."""
    averages = moving_average(torch.tensor(sign_delta, dtype=torch.float64))
    return np.append(0.0, averages.cumsum(0).numpy())
