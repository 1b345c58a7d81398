"""The page that sets every finding of the papers beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float, Int
from numpy import ndarray
from plotly.offline import get_plotlyjs

from dynolab.claims.claim import Trainings
from dynolab.claims.reproduction import (
    AFTER_EXTENDED,
    AFTER_SFT,
    SFT,
    TITLES,
    assess_reproduction,
)
from dynolab.claims.verdict import Verdict
from dynolab.data.rows import write_rows
from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.pairs import PairRun
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import Html, Tile, page, plate_section, section, table, text, tiles
from dynolab.report.pages.summary import outcome_counts
from dynolab.report.panels.arm_style import arm_style
from dynolab.report.panels.reproduction_table import reproduction_section
from dynolab.report.panels.sections import stage_section
from dynolab.report.style import (
    Plate,
    axis_key,
    axis_name,
    base_layout,
    columns,
    join,
    number,
    panel_title,
    with_interval,
)
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, band, mean_interval

KINDS = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*"}


@dataclass(frozen=True)
class ReproductionInputs:
    """All that the page shows; `runs` are trainings by the names of `TITLES`, with every seed."""

    name: str
    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, int], PairRun]
    judge: str = "exact"
    settings: str = ""
    stages: tuple[StageFacts, ...] = ()

    def trainings(self) -> list[Trainings]:
        """By seed the paths of the trainings that came to their end, on training prompts."""
        return [
            {
                name: paths
                for name in TITLES
                if (run := self.runs.get((name, seed))) is not None
                and run.summary is not None
                and (paths := learning_paths(run.probes)) is not None
            }
            for seed in self.seeds
        ]

    def won(self) -> Interval | None:
        """Share of held-out contests that DPO after extended SFT wins; over seeds."""
        found = [self.runs[AFTER_EXTENDED, seed].won for seed in self.seeds]
        return found[0] if len(found) == 1 else _over_seeds(found)


def _over_seeds(found: Sequence[Interval | None]) -> Interval | None:
    if any(one is None for one in found):
        return None
    return mean_interval(np.array([one.mean for one in found if one is not None]))


def write_reproduction_page(inputs: ReproductionInputs, folder: Path) -> dict[str, float]:
    """Writes `reproduction.html`, which stands alone, `summary.json`, `verdicts.jsonl` and
    `figures/`.

    **Returns** the flat finite numbers of the summary: `<training>/<kind>`, changes in nats, means
    over seeds, and `claims/<outcome>`.
    """
    seeds = inputs.trainings()
    verdicts = assess_reproduction(seeds, inputs.won())
    changes = changes_of(seeds)
    plate = path_plate(seeds)
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    body = [
        Html(f"<header><h1>{text(inputs.name)}</h1>{_lead(inputs, seeds).markup}"),
        tiles(_tiles(changes, verdicts)),
        Html("</header><main>"),
        reproduction_section(verdicts, _unit(inputs.seeds)),
        *([plate_section(plate)] if plate else []),
        _change_section(inputs, changes),
        stage_section(inputs.stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(inputs.settings)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    summary = _summary(inputs, changes, verdicts)
    title = f"Dynolab: {inputs.name}"
    write_text(folder / "reproduction.html", page(title, body, plotly_js))
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_rows(folder / "verdicts.jsonl", verdicts)
    write_plates([plate] if plate else [], folder / "figures", plotly_js)
    metrics: dict[str, float] = summary["metrics"]
    return metrics


def changes_of(seeds: Sequence[Trainings]) -> dict[str, Interval]:
    """`<training>/<kind>` and `<training>/gap`: mean changes in nats, as claims are measured."""
    found: dict[str, Interval] = {}
    for training in TITLES:
        paths = [one[training] for one in seeds if training in one]
        if not paths or len(paths) < len(seeds):
            continue
        for name in (*KINDS, "gap"):
            each = [_change(one, name) for one in paths]
            known = [one for one in each if one is not None]
            if len(known) == len(paths):
                means = [mean_interval(one).mean for one in known]
                found[f"{training}/{name}"] = mean_interval(
                    known[0] if len(known) == 1 else np.array(means)
                )
    return found


def _change(paths: LearningPaths, name: str) -> Float[ndarray, " pairs"] | None:
    values = paths.gap if name == "gap" else paths.logp.get(name)
    return None if values is None else change(values)


def path_plate(seeds: Sequence[Trainings]) -> Plate | None:
    """Chosen, rejected, y* and the gap over every training, means over seeds."""
    trainings = [name for name in TITLES if all(name in one for one in seeds)]
    if not trainings:
        return None
    figure = go.Figure()
    layout = base_layout(
        420,
        margin={"l": 64, "r": 24, "t": 90, "b": 52},
        legend={"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom"},
    )
    annotations = []
    panels = {**KINDS, "gap": "gap y* − y⁺"}
    for index, ((kind, title), domain) in enumerate(
        zip(panels.items(), columns(len(panels), 0.05), strict=True), start=1
    ):
        for place, training in enumerate(trainings):
            _add_path(figure, [one[training] for one in seeds], training, kind, place, index)
        layout[axis_key("x", index)] = {
            "domain": domain,
            "anchor": axis_name("y", index),
            "tickformat": ".0%",
            "title": {"text": "part of training"},
            "nticks": 4,
        }
        layout[axis_key("y", index)] = {"anchor": axis_name("x", index)}
        annotations.append(panel_title(title, domain[0], 1.01))
    layout["yaxis"]["title"] = {"text": "log π (nats)"}
    layout["annotations"] = annotations
    figure.update_layout(**layout)
    return Plate(
        "paths",
        "The paths of every training",
        _path_message(seeds, trainings),
        "Log-probability on training prompts over the part of training done, summed over an "
        "answer's tokens; lines: means over seeds and prompts; bands: 95% intervals over seeds of "
        "the change since the start, where there are several. Click a name to hide or show it.",
        figure,
    )


def _path_message(seeds: Sequence[Trainings], trainings: Sequence[str]) -> str:
    parts = []
    for name in trainings:
        gaps = [one[name].gap for one in seeds]
        known = np.array(
            [[mean_interval(row).mean for row in gap[[0, -1]]] for gap in gaps if gap is not None]
        )
        if known.size:
            start, end = known.mean(axis=0)
            parts.append(f"{number(start)} → {number(end)} under {TITLES[name]}")
    return f"The gap y* − y⁺ goes, in nats, {join(parts)}." if parts else "There is no gap."


def _add_path(
    figure: go.Figure,
    paths: Sequence[LearningPaths],
    training: str,
    kind: str,
    place: int,
    index: int,
) -> None:
    found = _means(paths, kind)
    if found is None:
        return
    steps, values = found
    color, dash = arm_style(place)
    axes = {"xaxis": axis_name("x", index), "yaxis": axis_name("y", index)}
    mean, low, high = band(values - values[:1] + values[:1].mean(axis=1, keepdims=True))
    share, inside = steps / steps[-1], np.isfinite(low)
    if inside.any():
        figure.add_scatter(
            x=np.concatenate([share[inside], share[inside][::-1]]),
            y=np.concatenate([high[inside], low[inside][::-1]]).round(4),
            fill="toself",
            fillcolor=color,
            opacity=0.1,
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
            legendgroup=training,
            **axes,
        )
    figure.add_scatter(
        x=share.round(4),
        y=mean.round(4),
        mode="lines",
        name=TITLES[training],
        legendgroup=training,
        showlegend=index == 1,
        line={"color": color, "dash": dash, "width": 2.5},
        customdata=steps,
        hovertemplate="%{fullData.name}, step %{customdata}: %{y:.2f} nats<extra></extra>",
        **axes,
    )


def _means(
    paths: Sequence[LearningPaths], kind: str
) -> tuple[Int[ndarray, " steps"], Float[ndarray, "steps seeds"]] | None:
    """Mean over pairs at every step, seed by seed, where all seeds were probed at the same."""
    each = [one.gap if kind == "gap" else one.logp.get(kind) for one in paths]
    steps = paths[0].steps
    if any(one is None or len(one) != len(steps) for one in each):
        return None
    means = [[mean_interval(row).mean for row in one] for one in each if one is not None]
    return steps, np.array(means).T


def _change_section(inputs: ReproductionInputs, changes: Mapping[str, Interval]) -> Html:
    shown = (*KINDS, "gap")
    rows = [
        (
            title,
            *(_cell(changes.get(f"{training}/{name}")) for name in shown),
            _ending(inputs, training),
        )
        for training, title in TITLES.items()
        if any((training, seed) in inputs.runs for seed in inputs.seeds)
    ]
    return section(
        "changes",
        "What every training moves",
        f"Changes of log π in nats from its first to its last probe [95% over "
        f"{_unit(inputs.seeds)}].",
        table(
            ("training", *(f"Δ {name}" for name in (*KINDS.values(), "gap y* − y⁺")), "runs"),
            rows,
            "snnnns",
        ),
    )


def _cell(one: Interval | None) -> str:
    return "–" if one is None else with_interval(one)


def _ending(inputs: ReproductionInputs, training: str) -> str:
    lost = [
        f"seed {seed} diverged after {run.diverged.step} steps"
        for seed in inputs.seeds
        if (run := inputs.runs.get((training, seed))) is not None and run.diverged is not None
    ]
    return "; ".join(lost) or "to the end"


def _unit(seeds: Sequence[int]) -> str:
    return "seeds" if len(seeds) > 1 else "prompts"


def _lead(inputs: ReproductionInputs, seeds: Sequence[Trainings]) -> Html:
    paths = seeds[0].get(SFT) if seeds else None
    watched = f" {len(paths.pairs)} training prompts are watched." if paths else ""
    many = len(inputs.seeds) > 1
    said = (
        "Which findings of the papers on finetuning appear here: SFT on chosen answers and on "
        "both answers, DPO from the base model and after each SFT, DPO with rejected answers "
        "sampled once from the model that it starts from, and, where something ranks answers, DPO "
        "and IPO on pairs that the policy samples itself at every step. "
        f"Seed{'s' if many else ''} {join(list(map(str, inputs.seeds)))}.{watched}"
    )
    return Html(f'<p class="lead">{text(said)}</p>')


def _tiles(changes: Mapping[str, Interval], verdicts: Sequence[Verdict]) -> list[Tile]:
    found = []
    for training in (SFT, AFTER_SFT, AFTER_EXTENDED):
        one = changes.get(f"{training}/gap")
        value = "–" if one is None else with_interval(one).split(" ")[0]
        detail = "not measured" if one is None else f"{with_interval(one)} nats"
        found.append(Tile(f"{TITLES[training]}: gap y* − y⁺", value, detail))
    appear = sum(verdict.outcome == "holds" for verdict in verdicts)
    absent = sum(verdict.outcome == "fails" for verdict in verdicts)
    measured = sum(verdict.outcome != "not measured" for verdict in verdicts)
    detail = f"{absent} do not, {len(verdicts) - measured} not measured"
    return [*found, Tile("Findings that appear", f"{appear} of {measured}", detail)]


def _summary(
    inputs: ReproductionInputs, changes: Mapping[str, Interval], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    return {
        "reproduction": inputs.name,
        "seeds": list(inputs.seeds),
        "metrics": {name: one.mean for name, one in changes.items()} | outcome_counts(verdicts),
        "changes": {name: one.as_dict() for name, one in changes.items()},
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
