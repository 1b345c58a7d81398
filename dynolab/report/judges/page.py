"""The page of a comparison of policies: whose answers judges prefer, and how far they agree."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from dynolab.data.rows import write_rows
from dynolab.report.figure import LEGEND_ABOVE, Figure, base_layout
from dynolab.report.inputs.judges import JudgePageInputs
from dynolab.report.judges.tables import (
    agreement_section,
    count_section,
    judge_section,
    prompt_section,
    rate_section,
)
from dynolab.report.page import Page, Tile, write_page, write_summary
from dynolab.report.style import SPLITS, ZERO, arm_style
from dynolab.report.text import join, number, plotly_text, points

_ROW, _MARGIN = 56, 120  # pixels


def write_judge_page(inputs: JudgePageInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `judge.html`, `summary.json`, `agreements.jsonl`, and the figure.

    **Returns** the summary's flat, finite metrics.
    """
    page = Page(
        name=inputs.name,
        lead=_lead(inputs),
        tiles=_tiles(inputs),
        content=(
            rate_figure(inputs),
            rate_section(inputs),
            judge_section(inputs),
            agreement_section(inputs),
            count_section(inputs),
            prompt_section(inputs),
        ),
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "judge.html")
    write_rows(folder / "agreements.jsonl", inputs.agreements)
    return write_summary(_summary(inputs), folder)


def rate_figure(inputs: JudgePageInputs) -> Figure:
    """Win rates with intervals: a line for each policy, a mark for each judge."""
    lines = len(inputs.policies) * max(1, len(inputs.judged) / 2)
    plot = go.Figure(
        layout=base_layout(
            int(_MARGIN + _ROW * lines),
            scattermode="group",
            showlegend=True,
            margin={"l": 130, "r": 24, "t": 40, "b": 54},
            xaxis={
                "range": [-0.02, 1.02],
                "tickformat": ".0%",
                "title": {"text": plotly_text(f"win rate over {inputs.baseline}", 60)},
            },
            yaxis={
                "type": "category",
                "categoryorder": "array",
                "autorange": "reversed",
                "categoryarray": [plotly_text(policy, 32) for policy in inputs.policies],
            },
            legend=LEGEND_ABOVE,
        )
    )
    for place, (judge, judged) in enumerate(inputs.judged.items()):
        rates = [rate for rate in judged.rates if rate.judged]
        color, _ = arm_style(place)
        plot.add_scatter(
            y=[plotly_text(rate.a, 32) for rate in rates],
            x=[round(rate.rate, 6) for rate in rates],
            mode="markers",
            orientation="h",
            name=plotly_text(judge, 32),
            offsetgroup=str(place),
            marker={"color": color, "size": 10, "symbol": "diamond"},
            error_x={
                "symmetric": False,
                "array": [rate.high - rate.rate for rate in rates],
                "arrayminus": [rate.rate - rate.low for rate in rates],
                "color": color,
                "thickness": 1.5,
                "width": 4,
            },
            customdata=[points(rate.interval, sign=False) for rate in rates],
            hovertemplate="%{y}, %{fullData.name}: %{customdata} %<extra></extra>",
        )
    plot.add_vline(x=0.5, layer="below", line={"color": ZERO, "dash": "dash", "width": 1.5})
    return Figure(
        "win-rates",
        f"Preferred to {inputs.baseline}",
        _message(inputs),
        "Diamonds: share of prompts on which a judge prefers the policy’s answer, ties half; "
        "lines: 95% intervals over prompts. Dashed: as good as the baseline.",
        plot,
    )


def _message(inputs: JudgePageInputs) -> str:
    """Lists which judges clearly distinguish which policies from the baseline."""
    clear = [
        f"{rate.a} wins {points(rate.interval, sign=False)}% by {rate.judge}"
        for rate in inputs.rates
        if rate.low > 0.5 or rate.high < 0.5
    ]
    if not clear:
        return f"No judge distinguishes a policy from {inputs.baseline}."
    return f"Of {len(inputs.rates)} comparisons, {len(clear)} are clear: {join(clear)}."


def _lead(inputs: JudgePageInputs) -> str:
    answers = inputs.answers[inputs.baseline]
    prompts = f"{len(answers)} {SPLITS[answers[0].split]} prompts"
    return (
        f"Whose answers to {prompts} are better: {join(inputs.policies)} against "
        f"{inputs.baseline}, one answer each, sampled at temperature {inputs.temperature:g}. "
        f"Judged by {join(list(inputs.judged))}, each pair of answers in both orders."
    )


def _tiles(inputs: JudgePageInputs) -> list[Tile]:
    first = next(iter(inputs.judged))
    tiles = [
        Tile(
            f"{rate.a} over {inputs.baseline}",
            f"{100 * rate.rate:.1f}%" if rate.judged else "–",
            f"by {rate.judge}: {points(rate.interval, sign=False)}",
        )
        for rate in inputs.rates
        if rate.judge == first
    ][:2]
    lowest = min(inputs.agreements, key=lambda agreement: agreement.share, default=None)
    if lowest is not None:
        judges = f"{lowest.first} and {lowest.second}"
        detail = f"lowest: {judges} on {lowest.a}, κ {number(lowest.kappa, 2)}"
        tiles.append(Tile("Judges agree", f"≥ {100 * lowest.share:.0f}%", detail))
    asked = sum(rate.counts.asked for rate in inputs.rates)
    missing = asked - sum(rate.counts.parsed for rate in inputs.rates)
    return [*tiles, Tile("Verdicts", f"{asked - missing} of {asked}", f"{missing} missing")]


def _summary(inputs: JudgePageInputs) -> dict[str, Any]:
    rates, counts = inputs.rates, [rate.counts.model_dump() for rate in inputs.rates]
    metrics = {f"win_rate/{rate.a}/{rate.judge}": rate.rate for rate in rates}
    metrics |= {f"first_share/{rate.a}/{rate.judge}": rate.first_share for rate in rates}
    for agreement in inputs.agreements:
        judges = f"{agreement.a}/{agreement.first}-{agreement.second}"
        metrics[f"agreement/{judges}"] = agreement.share
        metrics[f"kappa/{judges}"] = agreement.kappa
    metrics |= {
        f"verdicts/{outcome}": float(sum(count[outcome] for count in counts))
        for outcome in counts[0]
    }
    return {
        "comparison": inputs.name,
        "baseline": inputs.baseline,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "rates": [
            {"policy": rate.a, "judge": rate.judge, **rate.interval.as_dict()} for rate in rates
        ],
    }
