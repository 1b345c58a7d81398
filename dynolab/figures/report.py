"""The report of a study: one page that needs no network, its figures as files, its numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dynolab.figures.curves import training_plate
from dynolab.figures.forces import decomposition_plate, prediction_plate
from dynolab.figures.gap import gap_plate
from dynolab.figures.inputs import ProbeScore, ReportInputs, StageName
from dynolab.figures.learning_paths import learning_paths
from dynolab.figures.page import Html, Tile, page, page_beside, plate_section, text, tiles
from dynolab.figures.paths import SPLITS, Paths, learning_path_plate
from dynolab.figures.sections import (
    headline_tiles,
    kind_section,
    replay_section,
    stage_section,
    verdict_section,
)
from dynolab.figures.style import Plate
from dynolab.figures.summary import changes_since_start, summarise
from dynolab.figures.svg import paths_svg
from dynolab.figures.token_map import token_map_plate
from dynolab.figures.verdicts import Verdict, assess


def write_report(inputs: ReportInputs, folder: Path) -> dict[str, Any]:
    """Writes a study's report.

    **Arguments:** `inputs`: what was measured; `folder`: where the files go, made if missing.

    **Returns** the content of `summary.json`: `metrics` (a flat map of finite floats), `verdicts`
    and `replay`.

    Files: `report.html` (stands alone), `summary.json`, `paths.svg`, and per figure
    `figures/<name>.html` and `figures/<name>.json` (plotly), beside one `figures/plotly.min.js`.
    """
    paths = _all_paths(inputs)
    verdicts = assess(paths.get(("sft", "train")), paths.get(("dpo", "train")), inputs.forces)
    plates = _plates(inputs, paths)
    changes = changes_since_start(paths)
    summary = summarise(inputs, changes, verdicts)
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    headline = headline_tiles(changes, summary, verdicts)
    body = _body(inputs, paths, verdicts, plates, headline)
    title = f"Dynolab: {inputs.facts.name}"
    _write(folder / "report.html", page(title, body, plotly_js))
    _write(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    if drawing := paths_svg(paths):
        _write(folder / "paths.svg", drawing)
    _write_plates(plates, folder / "figures", plotly_js)
    return summary


def _write(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8", newline="\n")


def _write_plates(plates: Sequence[Plate], folder: Path, plotly_js: str) -> None:
    folder.mkdir(exist_ok=True)
    _write(folder / "plotly.min.js", plotly_js)
    for plate in plates:
        _write(folder / f"{plate.name}.json", plate.figure.to_json())
        body = [Html("<main>"), plate_section(plate), Html("</main>")]
        _write(folder / f"{plate.name}.html", page_beside(plate.title, body, "plotly.min.js"))


def _all_paths(inputs: ReportInputs) -> Paths:
    stages: dict[StageName, tuple[ProbeScore, ...]] = {
        "sft": inputs.sft_probes,
        "dpo": inputs.dpo_probes,
    }
    return {
        (stage, split): found
        for stage, rows in stages.items()
        for split in SPLITS
        if (found := learning_paths(rows, split)) is not None
    }


def _plates(inputs: ReportInputs, paths: Paths) -> list[Plate]:
    made = (
        learning_path_plate(paths),
        gap_plate(paths),
        training_plate({"sft": inputs.sft_metrics, "dpo": inputs.dpo_metrics}),
        prediction_plate(inputs.forces),
        decomposition_plate(inputs.forces, "dpo"),
        decomposition_plate(inputs.forces, "sft"),
        token_map_plate(inputs.token_map),
    )
    return [plate for plate in made if plate is not None]


def _body(
    inputs: ReportInputs,
    paths: Paths,
    verdicts: Sequence[Verdict],
    plates: Sequence[Plate],
    headline: Sequence[Tile],
) -> list[Html]:
    facts = inputs.facts
    seed = "" if facts.seed is None else f" Seed {facts.seed}."
    prompts = [
        f"{len(found.pairs)} {name} prompts"
        for split, name in SPLITS.items()
        if (found := paths.get(("dpo", split)) or paths.get(("sft", split))) is not None
    ]
    watched = f" Watched on {' and '.join(prompts)}." if prompts else ""
    return [
        Html(f"<header><h1>{text(facts.name)}</h1>"),
        Html(
            '<p class="lead">What training did to what the model says, and which forces did it.'
            f"{text(seed + watched)} Changes are in nats of log-probability, summed over an "
            "answer’s tokens; brackets hold 95% intervals over prompts.</p>"
        ),
        tiles(headline),
        Html("</header><main>"),
        *(plate_section(plate) for plate in plates),
        verdict_section(verdicts),
        replay_section(inputs.replay),
        kind_section(paths),
        stage_section(inputs),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(facts.config_text)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
