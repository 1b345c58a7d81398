"""The chapter on the kernel: does its order over pairs of answers last while a model is trained?"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from dynolab.chapters.page import Chapter
from dynolab.claims.verdict import Measurement, Outcome, Verdict
from dynolab.report.figure import Figure, correlation_plot
from dynolab.report.inputs.study import Kernel
from dynolab.report.style import SEQUENTIAL
from dynolab.report.text import number, plotly_text, true_minus
from dynolab.results.forces import AgreementRow, KernelFindings

_OUTCOMES: Mapping[str, Outcome] = {
    "holds": "holds",
    "breaks down": "fails",
    "unclear": "unclear",
}
_MARKS: Mapping[Outcome, str] = {"holds": "✓", "fails": "✗", "unclear": "?"}
Kernels = Mapping[float, Kernel]
"""Learning rate of SFT → the kernel along SFT and the preference training after it."""


def coupling_chapter(kernels: Kernels) -> Chapter:
    """The chapter's claims and figures."""
    findings = next(iter(kernels.values())).findings
    rates = len(kernels)
    return Chapter(
        title="The kernel: do the same answers stay coupled?",
        lead=f"One model, finetuned at {rates} learning rate{'s' if rates > 1 else ''}, and "
        "trained on preferences after each. At several points the size ‖CKC‖ of the kernel was "
        "estimated for pairs of answers; the rank correlation of these sizes between one point and "
        "the next says whether the answers that were coupled strongly still are. Where it breaks, "
        "forces found at one checkpoint say little about the next.",
        verdicts=[verdict for rate, own in kernels.items() for verdict in _verdicts(rate, own)],
        content=[_figure(kernels)],
        source="The order of ‖K‖ as a sign of healthy finetuning follows Ren’s thesis (arXiv "
        "2509.19554). Intervals are over resampled answers; an order holds above a rank "
        f"correlation of {number(findings.threshold)}, and fails below it after allowing for the "
        "noise of the estimate.",
    )


def _verdicts(rate: float, kernel: Kernel) -> list[Verdict]:
    """Whether the order lasts during SFT, and under the preference training after it."""
    findings = kernel.findings
    *during, after = _consecutive(findings)
    pairs = len(kernel.sizes) // len(findings.labels)
    topic, expected = f"learning rate {number(rate)}", f"rank correlation > {findings.threshold:g}"
    claims = (
        ("sft", "The same answers stay coupled from one point of SFT to the next", during),
        ("preference", "They stay coupled under preference training", [after]),
    )
    return [
        Verdict.of(
            f"{rate:g}/{name}",
            topic,
            claim,
            expected,
            *(_measured(own, pairs) for own in agreements),
        )
        for name, claim, agreements in claims
    ]


def _consecutive(findings: KernelFindings) -> list[AgreementRow]:
    """The agreement of every checkpoint with the next."""
    by_ends = {(own.first, own.second): own for own in findings.agreements}
    return [by_ends[ends] for ends in pairwise(findings.labels)]


def _measured(own: AgreementRow, pairs: int) -> Measurement:
    return Measurement(
        name=f"{own.first} to {own.second}",
        mean=own.correlation,
        low=own.low,
        high=own.high,
        n=pairs,
        outcome=_OUTCOMES[own.verdict],
    )


def _figure(kernels: Kernels) -> Figure:
    """Rank correlations by learning rate and part of the training."""
    rows = {rate: _consecutive(kernel.findings) for rate, kernel in kernels.items()}
    columns = [f"{own.first} → {own.second}" for own in next(iter(rows.values()))]
    plot = correlation_plot(
        150 + 80 * len(rows),
        z=np.array([[own.correlation for own in agreements] for agreements in rows.values()]),
        x=[plotly_text(column, 32) for column in columns],
        y=[number(rate) for rate in rows],
        text=[[_cell(own) for own in agreements] for agreements in rows.values()],
        colorscale=SEQUENTIAL,
        zmin=0,
        zmax=1.6,
        showscale=False,
    )
    plot.update_yaxes(title_text="learning rate of SFT")
    return Figure(
        "coupling",
        "From one checkpoint to the next",
        _message(rows),
        "A cell: Spearman’s rank correlation of ‖CKC‖ over all pairs of answers at two "
        "neighbouring checkpoints, with its 95% interval, and the median growth of the sizes "
        "between them.",
        plot,
    )


def _cell(own: AgreementRow) -> str:
    growth = true_minus(f"{own.growth:+.0%}")
    return (
        f"<b>{number(own.correlation, 2)}</b> [{number(own.low, 2)}, {number(own.high, 2)}]"
        f"<br>{_MARKS[_OUTCOMES[own.verdict]]} sizes {growth}"
    )


def _message(rows: Mapping[float, list[AgreementRow]]) -> str:
    rate, worst = min(
        ((rate, own) for rate, agreements in rows.items() for own in agreements),
        key=lambda found: found[1].correlation,
    )
    return (
        f"The order changes most at learning rate {number(rate)} from {worst.first} to "
        f"{worst.second}: rank correlation {number(worst.correlation, 2)} [{number(worst.low, 2)}, "
        f"{number(worst.high, 2)}]."
    )
