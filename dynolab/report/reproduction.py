"""The page that compares the papers' findings with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.claims.claim import Trainings, over_units
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
from dynolab.report.figure import Figure, add_line, band_of_change, subplots
from dynolab.report.inputs.arms import ReproductionInputs
from dynolab.report.page import Page, Section, Tile, section, table, write_page, write_summary
from dynolab.report.style import arm_style
from dynolab.report.text import join, number, with_interval
from dynolab.report.verdicts import (
    PLURAL,
    counts_of,
    outcome_counts,
    verdict_table,
)
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, mean_interval

_SHOWN = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*", "gap": "gap y* − y⁺"}


def write_reproduction_page(inputs: ReproductionInputs, folder: Path) -> dict[str, float]:
    """Writes the self-contained `reproduction.html`, `summary.json`, `verdicts.jsonl`, `figures/`.

    **Returns** the summary's flat, finite metrics: `<training>/<kind>`, changes in nats, means over
    seeds, and `claims/<outcome>`.
    """
    seeds = trainings_of(inputs)
    verdicts = assess_reproduction(seeds, _won(inputs))
    changes = changes_of(seeds)
    page = Page(
        name=inputs.name,
        lead=_lead(inputs, seeds),
        tiles=_tiles(changes, verdicts),
        content=[
            reproduction_section(verdicts, inputs.unit),
            path_figure(seeds),
            _change_section(inputs, changes),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "reproduction.html")
    write_rows(folder / "verdicts.jsonl", verdicts)
    return write_summary(_summary(inputs, changes, verdicts), folder)


def trainings_of(inputs: ReproductionInputs) -> list[Trainings]:
    """For each seed, the paths on training prompts of the trainings that finished."""
    return [
        {
            name: paths
            for name in TITLES
            if (run := inputs.runs.get((name, seed))) is not None
            and run.summary is not None
            and (paths := learning_paths(run.probes)) is not None
        }
        for seed in inputs.seeds
    ]


def _won(inputs: ReproductionInputs) -> Interval | None:
    """Share of held-out contests that DPO after extended SFT wins; over seeds."""
    won = [inputs.runs[AFTER_EXTENDED, seed].won for seed in inputs.seeds]
    known = [share for share in won if share is not None]
    if len(known) < len(won):
        return None
    return known[0] if len(won) == 1 else mean_interval(np.array([share.mean for share in known]))


def reproduction_section(verdicts: Sequence[Verdict], unit: str) -> Section:
    """The papers' findings: expected shape, measurement and verdict."""
    return section(
        "reproduction",
        "The papers' findings on finetuning",
        f"Of {len(verdicts)} findings, {counts_of(verdicts, PLURAL)}.",
        verdict_table("training", verdicts, named=lambda name: TITLES.get(name, name)),
        note="Findings and figures of Ren & Sutherland, Learning Dynamics of LLM Finetuning "
        "(arXiv 2407.10490), its authors' logs, and an independent rerun: shapes carry over to "
        "other models and data, numbers do not. Measured on training prompts, changes of log π in "
        f"nats; brackets hold 95% intervals over {unit}. Appears: every interval lies on the "
        "expected side; does not: one lies wholly on the other side; unclear: neither. A peak's "
        "step is chosen on the other half of the prompts. Extended SFT trains on both answers of "
        "every pair in twice as many steps, so that a chosen answer is seen as often and weighs as "
        "much as in SFT; half-weight extended SFT takes as many steps as SFT.",
    )


def changes_of(seeds: Sequence[Trainings]) -> dict[str, Interval]:
    """`<training>/<kind>` and `<training>/gap`: mean changes in nats, measured as in the claims."""
    changes: dict[str, Interval] = {}
    for training in TITLES:
        paths = [trainings[training] for trainings in seeds if training in trainings]
        if not paths or len(paths) < len(seeds):
            continue
        for name in _SHOWN:
            each = [change(known) for own in paths if (known := _values(own, name)) is not None]
            if len(each) == len(paths):
                changes[f"{training}/{name}"] = over_units(each)
    return changes


def _values(paths: LearningPaths, name: str) -> Float[ndarray, "steps pairs"] | None:
    return paths.gap if name == "gap" else paths.logp.get(name)


def path_figure(seeds: Sequence[Trainings]) -> Figure | None:
    """Chosen, rejected, y* and the gap over every training, means over seeds."""
    trainings = [name for name in TITLES if all(name in own for own in seeds)]
    if not trainings:
        return None
    plot = subplots(
        list(_SHOWN.values()),
        420,
        space=0.05,
        margin={"l": 64, "r": 24, "t": 90, "b": 52},
        legend={"orientation": "h", "x": 0, "y": 1.12, "yanchor": "bottom"},
        x={"tickformat": ".0%", "title_text": "fraction of training", "nticks": 4},
        y_title="log π (nats)",
    )
    for col, kind in enumerate(_SHOWN, start=1):
        for place, training in enumerate(trainings):
            means = _means([own[training] for own in seeds], kind)
            if means is None:
                continue
            steps, values = means
            color, dash = arm_style(place)
            add_line(
                plot,
                (steps / steps[-1]).round(4),
                band_of_change(values),
                {"color": color, "dash": dash, "width": 2.5},
                where={"legendgroup": training, "row": 1, "col": col},
                name=TITLES[training],
                showlegend=col == 1,
                customdata=steps,
                hovertemplate="%{fullData.name}, step %{customdata}: %{y:.2f} nats<extra></extra>",
            )
    return Figure(
        "paths",
        "The paths of every training",
        _path_message(seeds, trainings),
        "Log-probability on training prompts over the fraction of training done, summed over "
        "an answer's tokens; lines: means over seeds and prompts; bands: 95% intervals over seeds "
        "of the change since the start, where there are several. Click a name to hide or show it.",
        plot,
    )


def _path_message(seeds: Sequence[Trainings], trainings: Sequence[str]) -> str:
    parts = []
    for name in trainings:
        gaps = [own[name].gap for own in seeds]
        known = np.array(
            [[mean_interval(row).mean for row in gap[[0, -1]]] for gap in gaps if gap is not None]
        )
        if known.size:
            start, end = known.mean(axis=0)
            parts.append(f"{number(start)} → {number(end)} under {TITLES[name]}")
    return f"The gap y* − y⁺, in nats: {join(parts)}." if parts else "The gap was not measured."


def _means(
    paths: Sequence[LearningPaths], kind: str
) -> tuple[Int[ndarray, " steps"], Float[ndarray, "steps seeds"]] | None:
    """Mean over pairs by step and seed; None unless all seeds were probed equally often."""
    steps = paths[0].steps
    each = [known for own in paths if (known := _values(own, kind)) is not None]
    if len(each) < len(paths) or any(len(values) != len(steps) for values in each):
        return None
    return steps, np.array([[mean_interval(row).mean for row in values] for values in each]).T


def _change_section(inputs: ReproductionInputs, changes: Mapping[str, Interval]) -> Section:
    rows = [
        (
            title,
            *(_cell(changes.get(f"{training}/{name}")) for name in _SHOWN),
            _ending(inputs, training),
        )
        for training, title in TITLES.items()
        if any((training, seed) in inputs.runs for seed in inputs.seeds)
    ]
    return section(
        "changes",
        "What every training changes",
        f"Changes of log π in nats from the first to the last probe [95% over {inputs.unit}].",
        table(("training", *(f"Δ {name}" for name in _SHOWN.values()), "runs"), rows, "snnnns"),
    )


def _cell(change: Interval | None) -> str:
    return "–" if change is None else with_interval(change)


def _ending(inputs: ReproductionInputs, training: str) -> str:
    diverged = [
        f"seed {seed} diverged after {run.diverged.step} steps"
        for seed in inputs.seeds
        if (run := inputs.runs.get((training, seed))) is not None and run.diverged is not None
    ]
    return "; ".join(diverged) or "to the end"


def _lead(inputs: ReproductionInputs, seeds: Sequence[Trainings]) -> str:
    paths = seeds[0].get(SFT) if seeds else None
    watched = f" {len(paths.pairs)} training prompts are watched." if paths else ""
    many = len(inputs.seeds) > 1
    return (
        "Which findings of the papers on finetuning appear here: SFT on chosen answers and on "
        "both answers, DPO from the base model and after each SFT, DPO with rejected answers "
        "sampled once from the model that it starts from, and, if a judge ranks answers, DPO and "
        "IPO on pairs that the policy itself samples at every step. "
        f"Seed{'s' if many else ''} {join(list(map(str, inputs.seeds)))}.{watched}"
    )


def _tiles(changes: Mapping[str, Interval], verdicts: Sequence[Verdict]) -> list[Tile]:
    tiles = []
    for training in (SFT, AFTER_SFT, AFTER_EXTENDED):
        gap = changes.get(f"{training}/gap")
        value = "–" if gap is None else with_interval(gap).split(" ")[0]
        detail = "not measured" if gap is None else f"{with_interval(gap)} nats"
        tiles.append(Tile(f"{TITLES[training]}: gap y* − y⁺", value, detail))
    appear = sum(verdict.outcome == "holds" for verdict in verdicts)
    absent = sum(verdict.outcome == "fails" for verdict in verdicts)
    measured = sum(verdict.outcome != "not measured" for verdict in verdicts)
    detail = f"{absent} do not, {len(verdicts) - measured} not measured"
    return [*tiles, Tile("Findings that appear", f"{appear} of {measured}", detail)]


def _summary(
    inputs: ReproductionInputs, changes: Mapping[str, Interval], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    return {
        "reproduction": inputs.name,
        "seeds": list(inputs.seeds),
        "metrics": {name: moved.mean for name, moved in changes.items()} | outcome_counts(verdicts),
        "changes": {name: moved.as_dict() for name, moved in changes.items()},
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
