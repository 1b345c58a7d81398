"""The page of a force analysis: what pushes what, through which parameters, and does it last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from plotly.offline import get_plotlyjs

from dynolab.report.files import write_plates, write_text
from dynolab.report.inputs.forces import CheckpointForces, ForcePageInputs
from dynolab.report.page import Html, Tile, page, plate_section, section, table, text, tiles
from dynolab.report.panels.blocks import block_plate, last_layer_plate
from dynolab.report.panels.kernel import kernel_size_plate, stability_plate
from dynolab.report.panels.pair_matrix import pair_matrix_plate
from dynolab.report.panels.sections import stage_section
from dynolab.report.panels.terms import terms_plate
from dynolab.report.panels.token_map_choice import token_map_choice_plate
from dynolab.report.style import Plate, join, number, objective_name

FIRST_ORDER_NATS = 0.5  # a token; the second order is a large part of the change from there on


def write_force_page(inputs: ForcePageInputs, folder: Path) -> None:
    """Writes `forces.html`, which stands alone, and every figure as a file in `figures/`."""
    plates = _plates(inputs)
    folder.mkdir(parents=True, exist_ok=True)
    plotly_js = get_plotlyjs()
    body = [
        Html(f"<header><h1>{text(inputs.name)}</h1>{_lead(inputs).markup}"),
        tiles(_tiles(inputs)),
        Html("</header><main>"),
        *map(plate_section, plates),
        _facts_section(inputs.checkpoints),
        stage_section(inputs.stages),
        Html(
            '<section id="config"><details><summary>Settings</summary>'
            f"<pre>{text(inputs.settings)}</pre></details></section>"
        ),
        Html("<footer>Made by Dynolab. This page loads nothing from anywhere.</footer></main>"),
    ]
    write_text(folder / "forces.html", page(f"Dynolab: {inputs.name}", body, plotly_js))
    write_plates(plates, folder / "figures", plotly_js)


def _plates(inputs: ForcePageInputs) -> list[Plate]:
    checkpoints = inputs.checkpoints
    maps = [(one.label, found) for one in checkpoints for found in one.token_maps]
    made = (
        pair_matrix_plate(checkpoints),
        token_map_choice_plate(maps),
        block_plate(checkpoints),
        last_layer_plate(checkpoints),
        terms_plate(checkpoints),
        kernel_size_plate(inputs.kernel),
        stability_plate(inputs.kernel),
    )
    return [plate for plate in made if plate is not None]


def _lead(inputs: ForcePageInputs) -> Html:
    first = inputs.checkpoints[0].facts
    steps = list(dict.fromkeys(_step(one) for one in inputs.checkpoints))
    reference = f" The reference is {inputs.reference}." if inputs.reference else ""
    labels = join([one.label for one in inputs.checkpoints])
    updating = "group" if first.grouped else "pair"
    updating += "" if first.updating_pairs == 1 else "s"
    left_out = max(one.facts.left_out for one in inputs.checkpoints)
    overlong = f" {left_out} responses were longer than the model’s context." if left_out else ""
    return Html(
        '<p class="lead">'
        + text(
            f"What {first.updating_pairs} {updating} ({first.updating_tokens} tokens) would do to "
            f"{first.observed_answers} observed answers ({first.observed_tokens} tokens) under "
            f"{objective_name(first.objective)}, token by token, at {labels}, by {join(steps)}."
            f"{reference}{overlong} First-order changes of log-probability, in nats."
            f"{_too_far(inputs)}"
        )
        + "</p>"
    )


def _too_far(inputs: ForcePageInputs) -> str:
    """A warning where the whole step would move an answer further than first order reaches."""
    moved: dict[tuple[str, str, str, str], float] = defaultdict(float)
    for one in inputs.checkpoints:
        for row in one.totals:
            moved[one.label, row.kind, row.split, row.observed_id] += row.total / row.tokens
    most = max(map(abs, moved.values()))
    if most <= FIRST_ORDER_NATS:
        return ""
    return (
        f" The step would move an answer by up to {number(most, 2)} nats a token, where first "
        "order no longer holds: read the numbers as proportions, or lower the learning rate."
    )


def _step(one: CheckpointForces) -> str:
    rate = f"learning rate {number(one.facts.learning_rate)}"
    rate += ", of the adapters alone" if one.facts.adapters else ""
    if one.facts.step is None:
        return f"a gradient step of {rate}"
    return f"the realised optimizer step {one.facts.step} of {one.label} ({rate})"


def _tiles(inputs: ForcePageInputs) -> list[Tile]:
    found = []
    for one in inputs.checkpoints[-3:]:
        kind = one.totals[0].kind
        rows = [row for row in one.totals if row.kind == kind and row.split == "train"]
        rows = rows or [row for row in one.totals if row.kind == kind]
        answers = len({(row.observed_id, row.split) for row in rows})
        plus, minus = (
            sum(getattr(row, side) for row in rows) / answers
            for side in ("from_chosen", "from_rejected")
        )
        found.append(
            Tile(
                f"{one.label}: {kind} answer",
                number(plus + minus, 3, sign=True),
                f"nats a step: y⁺ {number(plus, 2, sign=True)}, y⁻ {number(minus, 2, sign=True)}",
            )
        )
    agreements = inputs.kernel.findings.agreements
    if agreements:
        least = min(agreements, key=lambda one: one.correlation)
        found.append(
            Tile(
                f"Kernel order {least.verdict}",
                number(least.correlation, 2),
                f"least rank correlation, {least.first} to {least.second}",
            )
        )
    return found


def _facts_section(checkpoints: Sequence[CheckpointForces]) -> Html:
    """What was computed at each checkpoint, and how exactly."""
    rows = [
        (
            one.label,
            objective_name(one.facts.objective),
            number(one.facts.learning_rate),
            "–" if one.facts.step is None else one.facts.step,
            f"{one.facts.observed_tokens} × {one.facts.updating_tokens}",
            one.facts.route,
            number(one.facts.block_error, 2),
            number(one.facts.last_layer.cosine),
            number(one.facts.last_layer.norm_ratio),
            number(one.facts.last_layer.sign_agreement),
        )
        for one in checkpoints
    ]
    worst = max(one.facts.block_error for one in checkpoints)
    head = (
        "checkpoint",
        "objective",
        "learning rate",
        "recorded step",
        "tokens",
        "route",
        "block error",
        "cosine",
        "size",
        "signs",
    )
    return section(
        "maps",
        "How it was computed",
        f"Each map was computed twice, as a whole and block by block; the two differ by at most "
        f"{number(worst, 2)}, relative.",
        table(head, rows, "ssnnnsnnnn"),
        note="The maps lie in the store, with their manifest, in the folder map of each analysis: "
        "ForceMap.open reads them. The last three columns are the last layer's map against the "
        "whole: cosine, ratio of norms, share of equal signs.",
    )
