"""The page on the kernel: does its order over pairs of answers last while a model is trained?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from dynolab.claims.verdict import Measurement, Outcome, Verdict
from dynolab.report.figure import Figure, correlation_plot
from dynolab.report.inputs.study import Kernel, read_kernel
from dynolab.report.style import SEQUENTIAL, number, plotly_text, true_minus
from dynolab.results.forces import AgreementRow
from experiments.chapters.page import Chapter, Facts

_OUTCOMES: Mapping[str, Outcome] = {"holds": "holds", "breaks down": "fails", "unclear": "unclear"}


def coupling(inputs: Mapping[str, Path], facts: Facts) -> Chapter:
    """Make the chapter of one kernel for every learning rate of SFT, in their order."""
    kernels = dict(zip(facts.learning_rates, map(read_kernel, inputs.values()), strict=True))
    threshold = next(iter(kernels.values())).findings.threshold
    return Chapter(
        title="The kernel: do the same answers stay coupled?",
        lead="One model, finetuned at several learning rates, and trained on preferences after "
        "each. At several points the size ‖CKC‖ of the kernel is estimated for pairs of answers; "
        "the rank correlation of these sizes between one point and the next says whether the "
        "answers that were coupled strongly still are. Where it breaks, forces found at one "
        "checkpoint say little about the next.",
        verdicts=[verdict for rate, row in kernels.items() for verdict in _verdicts(rate, row)],
        content=[_figure(kernels)],
        source="The order of ‖K‖ as a sign of healthy finetuning follows Ren's thesis (arXiv "
        "2509.19554). Intervals are over resampled answers; an order holds above a rank "
        f"correlation of {number(threshold)}, and fails below it after allowing for the noise of "
        "the estimate.",
    )


def _verdicts(rate: float, kernel: Kernel) -> list[Verdict]:
    """Whether the order lasts during SFT, and under the preference training after it."""
    findings = kernel.findings
    figures = [
        Measurement(
            name=f"{row.first} to {row.second}",
            mean=row.correlation,
            low=row.low,
            high=row.high,
            n=len(kernel.sizes) // len(findings.labels),
            outcome=_OUTCOMES[row.verdict],
        )
        for row in _consecutive(kernel)
    ]
    topic, expected = f"learning rate {number(rate)}", f"rank correlation > {findings.threshold:g}"
    claims = (
        ("sft", "The same answers stay coupled from one point of SFT to the next", figures[:-1]),
        ("preference", "They stay coupled under preference training", figures[-1:]),
    )
    return [
        Verdict.of(f"{rate:g}/{name}", topic, claim, expected, *measured)
        for name, claim, measured in claims
    ]


def _consecutive(kernel: Kernel) -> list[AgreementRow]:
    """The agreement of every checkpoint with the next."""
    by_ends = {(row.first, row.second): row for row in kernel.findings.agreements}
    return [by_ends[ends] for ends in pairwise(kernel.findings.labels)]


def _figure(kernels: Mapping[float, Kernel]) -> Figure:
    """Rank correlations by learning rate and part of the training."""
    rows = {rate: _consecutive(kernel) for rate, kernel in kernels.items()}
    columns = [f"{row.first} → {row.second}" for row in next(iter(rows.values()))]
    plot = correlation_plot(
        150 + 80 * len(rows),
        z=np.array([[row.correlation for row in agreements] for agreements in rows.values()]),
        x=[plotly_text(column, 32) for column in columns],
        y=[number(rate) for rate in rows],
        text=[[_cell(row) for row in agreements] for agreements in rows.values()],
        colorscale=SEQUENTIAL,
        zmin=0,
        zmax=1.6,
        showscale=False,
    )
    plot.update_yaxes(title_text="learning rate of SFT")
    return Figure(
        "coupling",
        "From one checkpoint to the next",
        "Rank correlation of the kernel's sizes at two neighbouring checkpoints.",
        "A cell: Spearman's rank correlation of ‖CKC‖ over all pairs of answers, with its 95% "
        "interval, and the median growth of the sizes.",
        plot,
    )


def _cell(row: AgreementRow) -> str:
    growth = true_minus(f"{row.growth:+.0%}")
    ends = f"[{number(row.low, 2)}, {number(row.high, 2)}]"
    return f"<b>{number(row.correlation, 2)}</b> {ends}<br>{row.verdict}, sizes {growth}"
