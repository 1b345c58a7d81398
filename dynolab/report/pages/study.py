"""The report of a study: one page that needs no network, its figures as files, its numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dynolab.claims.study import assess
from dynolab.claims.verdict import Verdict
from dynolab.data.rows import write_rows
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.events import Event, events_of
from dynolab.probes.pairs import pair_changes
from dynolab.probes.paths import learning_paths
from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.study import ReportInputs, Training
from dynolab.report.page import Html, Tile, page, plate_section, text, tiles
from dynolab.report.pages.compared import compared_sections
from dynolab.report.pages.summary import changes_since_start, summarise
from dynolab.report.panels.answers import answer_section
from dynolab.report.panels.contrasts import contrast_section
from dynolab.report.panels.curves import training_plate
from dynolab.report.panels.decomposition import decomposition_plate
from dynolab.report.panels.events import event_section
from dynolab.report.panels.foresight import foreseen_plate, foresight_section
from dynolab.report.panels.gap import gap_plate
from dynolab.report.panels.hallucination import hallucination_section
from dynolab.report.panels.kernel import kernel_size_plate, stability_plate
from dynolab.report.panels.pairs import pair_section
from dynolab.report.panels.paths import Paths, learning_path_plate, stages_of
from dynolab.report.panels.prediction import prediction_plate
from dynolab.report.panels.sections import (
    headline_tiles,
    kind_section,
    replay_section,
    stage_section,
    verdict_section,
)
from dynolab.report.panels.squeezing import forecast_section, repeater_section, squeezing_plate
from dynolab.report.panels.svg import paths_svg
from dynolab.report.panels.token_map import token_map_plate
from dynolab.report.style import SPLITS, Plate, number, objective_name
from dynolab.results.study import PairChange


def write_report(inputs: ReportInputs, folder: Path) -> dict[str, Any]:
    """Writes a study's report.

    **Arguments:** `inputs`: what was measured; `folder`: where the files go, made if missing.

    **Returns** the content of `summary.json`: `metrics` (a flat map of finite floats), `verdicts`
    and `replay`.

    Files: `report.html` (stands alone), `summary.json`, `paths.svg`, per figure
    `figures/<name>.html` and `figures/<name>.json` (plotly), beside one `figures/plotly.min.js`;
    and after preference training `pairs.jsonl` (`PairChange`, worst first).
    """
    paths = _all_paths(inputs)
    trainings = inputs.trainings
    verdicts = assess(
        {training.stage: paths.get((training.stage, "train")) for training in trainings},
        [row for training in trainings for row in training.forces],
    )
    plates = _plates(inputs, paths)
    changes = changes_since_start(paths)
    events = _events(inputs, paths)
    pairs = _pairs(inputs, paths)
    summary = summarise(inputs, changes, verdicts, events)
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    headline = headline_tiles([t.stage for t in trainings], changes, summary, verdicts)
    body = _body(inputs, paths, verdicts, plates, headline, events, pairs)
    title = f"Dynolab: {inputs.facts.name}"
    write_text(folder / "report.html", page(title, body, plotly_js))
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    if pairs:
        write_rows(folder / "pairs.jsonl", pairs)
    if drawing := paths_svg(paths):
        write_text(folder / "paths.svg", drawing)
    write_plates(plates, folder / "figures", plotly_js)
    return summary


def _all_paths(inputs: ReportInputs) -> Paths:
    return {
        (training.stage, split): found
        for training in inputs.trainings
        for split in SPLITS
        if (found := learning_paths(training.probes, split)) is not None
    }


def _events(inputs: ReportInputs, paths: Paths) -> dict[str, tuple[Event, ...]]:
    return {
        training.stage: events_of(paths[(training.stage, "train")])
        for training in inputs.trainings
        if (training.stage, "train") in paths
    }


def _pairs(inputs: ReportInputs, paths: Paths) -> list[PairChange]:
    """What the study's last training did to its pairs, if it was on pairs."""
    last = inputs.trainings[-1].stage if inputs.trainings else ""
    if last not in PAIR_OBJECTIVES or (last, "train") not in paths:
        return []
    return pair_changes(paths[(last, "train")], _training_prompts(inputs))


def _training_prompts(inputs: ReportInputs) -> dict[str, str]:
    return {row.pair_id: row.prompt for row in inputs.watched if row.split == "train"}


def _plates(inputs: ReportInputs, paths: Paths) -> list[Plate]:
    trainings = inputs.trainings
    maps = [training.token_map for training in trainings if training.token_map]
    made = (
        learning_path_plate(paths),
        gap_plate(paths),
        squeezing_plate(inputs.squeezing, _titles(inputs)) if inputs.squeezing else None,
        foreseen_plate(inputs.audit) if inputs.audit else None,
        training_plate(trainings),
        prediction_plate(trainings),
        *(decomposition_plate(training) for training in reversed(trainings)),
        token_map_plate(maps[-1] if maps else None),
        kernel_size_plate(inputs.kernel) if inputs.kernel else None,
        stability_plate(inputs.kernel) if inputs.kernel else None,
    )
    return [plate for plate in made if plate is not None]


def _body(
    inputs: ReportInputs,
    paths: Paths,
    verdicts: Sequence[Verdict],
    plates: Sequence[Plate],
    headline: Sequence[Tile],
    events: Mapping[str, Sequence[Event]],
    pairs: Sequence[PairChange],
) -> list[Html]:
    facts, trainings = inputs.facts, inputs.trainings
    contrasts = [contrast_section(trainings[-1], inputs.contrasts)] if inputs.contrasts else []
    foreseen = [foresight_section(inputs.audit.foresight)] if inputs.audit else []
    titles, squeezing = _titles(inputs), inputs.squeezing
    first = ("paths", "gap", "squeezing")
    replay = [row for training in trainings for row in training.replay]
    return [
        Html(f"<header><h1>{text(facts.name)}</h1>{_lead(inputs, paths).markup}"),
        tiles(headline),
        Html("</header><main>"),
        *(plate_section(plate) for plate in plates if plate.name in first),
        event_section(events),
        *contrasts,
        *compared_sections(inputs.compared),
        answer_section(inputs.answers, titles),
        hallucination_section(inputs.answers, titles, _training_prompts(inputs)),
        *([repeater_section(squeezing.generations, titles)] if squeezing else []),
        *foreseen,
        *([pair_section(pairs, trainings[-1].stage, facts.map_command)] if pairs else []),
        *(plate_section(plate) for plate in plates if plate.name not in first),
        *([forecast_section(squeezing.forecasts, titles)] if squeezing else []),
        verdict_section(verdicts),
        replay_section(replay),
        kind_section(paths, inputs.watched),
        stage_section(facts.stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(facts.config_text)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]


def _lead(inputs: ReportInputs, paths: Paths) -> Html:
    seed = "" if inputs.facts.seed is None else f" Seed {inputs.facts.seed}."
    last = stages_of(paths)[-1:]
    prompts = [
        f"{len(paths[(stage, split)].pairs)} {name} prompts"
        for stage in last
        for split, name in SPLITS.items()
        if (stage, split) in paths
    ]
    watched = f" Watched on {' and '.join(prompts)}." if prompts else ""
    watched += "".join(map(_left_out, inputs.trainings))
    watched += "".join(map(_alarmed, inputs.trainings))
    return Html(
        '<p class="lead">What training did to what the model says, and which forces did it.'
        f"{text(seed + watched)} Changes are in nats of log-probability, summed over an answer’s "
        "tokens; brackets hold 95% intervals over prompts.</p>"
    )


def _titles(inputs: ReportInputs) -> dict[str, str]:
    """How trainings are called on the page, by the study's names for them."""
    return {training.name: objective_name(training.stage) for training in inputs.trainings}


def _alarmed(training: Training) -> str:
    """That the alarm rang, and whether it ended the training."""
    ring = training.alarm
    if ring is None:
        return ""
    done = "ended" if ring.stopped else "warned of"
    return (
        f" The alarm {done} {objective_name(training.stage)} at step {ring.step}, where the gap "
        f"y* − y⁺ had grown by {number(ring.rise)} to {number(ring.gap)} nats."
    )


def _left_out(training: Training) -> str:
    """What the context was too short for, which nothing else on the page would tell."""
    dropped, cut = (training.rows.get(f"data/rows_{what}", 0) for what in ("dropped", "truncated"))
    if not dropped and not cut:
        return ""
    kept = training.rows.get("data/rows_kept", 0)
    parts = ([f"left out {dropped}"] if dropped else []) + ([f"cut {cut}"] if cut else [])
    return (
        f" {objective_name(training.stage)} {' and '.join(parts)} of {kept + dropped} pairs as "
        "longer than the model’s context."
    )
