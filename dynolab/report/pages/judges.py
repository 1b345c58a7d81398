"""The page of a comparison of policies: whose answers judges prefer, and how far they agree."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from dynolab.data.rows import write_rows
from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.judges import JudgePageInputs
from dynolab.report.page import Html, Tile, page, plate_section, text, tiles
from dynolab.report.panels.arm_style import arm_style
from dynolab.report.panels.judge_tables import (
    agreement_section,
    count_section,
    judge_section,
    prompt_section,
    rate_section,
)
from dynolab.report.panels.sections import stage_section
from dynolab.report.style import (
    SPLITS,
    ZERO,
    Plate,
    base_layout,
    join,
    number,
    plotly_text,
    points,
)

_ROW, _MARGIN = 56, 120  # pixels


def write_judge_page(inputs: JudgePageInputs, folder: Path) -> dict[str, float]:
    """Writes `judge.html`, which stands alone, `summary.json`, `agreements.jsonl`, and the figure.

    **Returns** the flat finite numbers of the summary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js, plate = get_plotlyjs(), rate_plate(inputs)
    body = [
        Html(f"<header><h1>{text(inputs.name)}</h1>{_lead(inputs).markup}"),
        tiles(_tiles(inputs)),
        Html("</header><main>"),
        plate_section(plate),
        rate_section(inputs),
        judge_section(inputs),
        agreement_section(inputs),
        count_section(inputs),
        prompt_section(inputs),
        stage_section(inputs.stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(inputs.settings)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    summary = _summary(inputs)
    write_text(folder / "judge.html", page(f"Dynolab: {inputs.name}", body, plotly_js))
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_rows(folder / "agreements.jsonl", inputs.agreements)
    write_plates([plate], folder / "figures", plotly_js)
    metrics: dict[str, float] = summary["metrics"]
    return metrics


def rate_plate(inputs: JudgePageInputs) -> Plate:
    """Win rates with intervals: a line for each policy, a mark for each judge."""
    figure = go.Figure()
    for place, (judge, judged) in enumerate(inputs.judged.items()):
        rates = [one for one in judged.rates if one.judged]
        color, _ = arm_style(place)
        figure.add_scatter(
            y=[plotly_text(one.a, 32) for one in rates],
            x=[round(one.rate, 6) for one in rates],
            mode="markers",
            orientation="h",
            name=plotly_text(judge, 32),
            offsetgroup=str(place),
            marker={"color": color, "size": 10, "symbol": "diamond"},
            error_x={
                "symmetric": False,
                "array": [one.high - one.rate for one in rates],
                "arrayminus": [one.rate - one.low for one in rates],
                "color": color,
                "thickness": 1.5,
                "width": 4,
            },
            customdata=[points(one.interval, sign=False) for one in rates],
            hovertemplate="%{y}, %{fullData.name}: %{customdata} %<extra></extra>",
        )
    lines = len(inputs.policies) * max(1, len(inputs.judged) / 2)
    figure.update_layout(
        **base_layout(
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
                "categoryarray": [plotly_text(one, 32) for one in inputs.policies],
            },
            legend={
                "orientation": "h",
                "x": 0.8,
                "xanchor": "right",
                "y": 1.02,
                "yanchor": "bottom",
            },
            shapes=[
                {
                    "type": "line",
                    "x0": 0.5,
                    "x1": 0.5,
                    "yref": "paper",
                    "y0": 0,
                    "y1": 1,
                    "layer": "below",
                    "line": {"color": ZERO, "dash": "dash", "width": 1.5},
                }
            ],
        )
    )
    return Plate(
        "win-rates",
        f"Preferred to {inputs.baseline}",
        _message(inputs),
        "Diamonds: share of prompts on which a judge prefers the policy’s answer, ties half; "
        "lines: 95% intervals over prompts. Dashed: as good as the baseline.",
        figure,
    )


def _message(inputs: JudgePageInputs) -> str:
    """Which judges tell which policies apart from the baseline."""
    told = [
        f"{rate.a} wins {points(rate.interval, sign=False)}% by {rate.judge}"
        for rate in inputs.rates
        if rate.low > 0.5 or rate.high < 0.5
    ]
    if not told:
        return f"No judge can tell a policy from {inputs.baseline}."
    return f"Of {len(inputs.rates)} comparisons {len(told)} are clear: {join(told)}."


def _lead(inputs: JudgePageInputs) -> Html:
    rows = inputs.said[inputs.baseline]
    asked = f"{len(rows)} {SPLITS[rows[0].split]} prompts"
    told = (
        f"Whose answers to {asked} are better: {join(inputs.policies)} against {inputs.baseline}, "
        f"one answer each, drawn at temperature {inputs.temperature:g}. Judged by "
        f"{join(list(inputs.judged))}, every two answers in both orders."
    )
    return Html(f'<p class="lead">{text(told)}</p>')


def _tiles(inputs: JudgePageInputs) -> list[Tile]:
    first = next(iter(inputs.judged))
    found = [
        Tile(
            f"{rate.a} over {inputs.baseline}",
            f"{100 * rate.rate:.1f}%" if rate.judged else "–",
            f"by {rate.judge}: {points(rate.interval, sign=False)}",
        )
        for rate in inputs.rates
        if rate.judge == first
    ][:2]
    lowest = min(inputs.agreements, key=lambda one: one.share, default=None)
    if lowest is not None:
        found.append(
            Tile(
                "Judges agree",
                f"≥ {100 * lowest.share:.0f}%",
                f"least: {lowest.first} and "
                f"{lowest.second} on {lowest.a}, κ {number(lowest.kappa, 2)}",
            )
        )
    asked = sum(rate.counts.asked for rate in inputs.rates)
    missing = asked - sum(rate.counts.parsed for rate in inputs.rates)
    return [*found, Tile("Verdicts", f"{asked - missing} of {asked}", f"{missing} missing")]


def _summary(inputs: JudgePageInputs) -> dict[str, Any]:
    rates, counts = inputs.rates, [rate.counts.model_dump() for rate in inputs.rates]
    metrics = {f"win_rate/{rate.a}/{rate.judge}": rate.rate for rate in rates}
    metrics |= {f"first_share/{rate.a}/{rate.judge}": rate.first_share for rate in rates}
    for one in inputs.agreements:
        metrics[f"agreement/{one.a}/{one.first}-{one.second}"] = one.share
        metrics[f"kappa/{one.a}/{one.first}-{one.second}"] = one.kappa
    metrics |= {f"verdicts/{name}": float(sum(one[name] for one in counts)) for name in counts[0]}
    return {
        "comparison": inputs.name,
        "baseline": inputs.baseline,
        "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
        "rates": [
            {"policy": rate.a, "judge": rate.judge, **rate.interval.as_dict()} for rate in rates
        ],
    }
