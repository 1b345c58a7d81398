"""The page of a force analysis: what pushes what, by which parameters, and whether it lasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from dynolab.report.forces.kernel import kernel_size_figure, stability_figure
from dynolab.report.forces.pair_matrix import pair_matrix_figure
from dynolab.report.forces.parts import block_figure, last_layer_figure, terms_figure
from dynolab.report.forces.token_map_choice import token_map_choice_figure
from dynolab.report.inputs.forces import CheckpointForces, ForcePageInputs
from dynolab.report.page import Page, Section, Tile, section, table, write_page
from dynolab.report.style import objective_name
from dynolab.report.text import join, number
from dynolab.results.forces import UNEXPLAINED, AnalysisFacts

FIRST_ORDER_NATS = 0.5  # per token; from there on the second order is a large part of the change


def write_force_page(inputs: ForcePageInputs, folder: Path) -> None:
    """Writes the self-contained `forces.html`, and every figure as a file in `figures/`."""
    checkpoints = inputs.checkpoints
    maps = [
        (checkpoint.label, map_) for checkpoint in checkpoints for map_ in checkpoint.token_maps
    ]
    page = Page(
        name=inputs.name,
        lead=_lead(inputs),
        tiles=_tiles(inputs),
        content=[
            pair_matrix_figure(checkpoints),
            token_map_choice_figure(maps),
            block_figure(checkpoints),
            last_layer_figure(checkpoints),
            terms_figure(checkpoints),
            kernel_size_figure(inputs.kernel),
            stability_figure(inputs.kernel),
            _facts_section(checkpoints),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "forces.html")


def _lead(inputs: ForcePageInputs) -> str:
    first = inputs.checkpoints[0].facts
    steps = list(dict.fromkeys(map(_step, inputs.checkpoints)))
    reference = f" The reference is {inputs.reference}." if inputs.reference else ""
    labels = join([checkpoint.label for checkpoint in inputs.checkpoints])
    updating = "group" if first.grouped else "pair"
    updating += "" if first.updating_pairs == 1 else "s"
    left_out = max(checkpoint.facts.left_out for checkpoint in inputs.checkpoints)
    overlong = f" {left_out} responses were longer than the model’s context." if left_out else ""
    return (
        f"What {first.updating_pairs} {updating} ({first.updating_tokens} tokens) would do to "
        f"{first.observed_answers} observed answers ({first.observed_tokens} tokens) under "
        f"{objective_name(first.objective)}, token by token, at {labels}, by {join(steps)}."
        f"{reference}{overlong} First-order changes of log-probability, in nats."
        f"{_too_far(inputs)}{_outside(inputs)}"
    )


def _outside(inputs: ForcePageInputs) -> str:
    """Names the recorded steps that moved too far for first order at the weights before them."""
    parts = [
        f"{number(100 * share, 2)}% at {checkpoint.label}"
        for checkpoint in inputs.checkpoints
        if (share := checkpoint.facts.unexplained) is not None and share > UNEXPLAINED
    ]
    if not parts:
        return ""
    return (
        " Of the squared change that the recorded steps made, first order leaves "
        f"{join(parts)} unexplained: the numbers there are the direction of a push, not its size."
    )


def _too_far(inputs: ForcePageInputs) -> str:
    """Warns if the whole step would move an answer too far for first order to hold."""
    moved: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    for checkpoint in inputs.checkpoints:
        for row in checkpoint.totals:
            answer = checkpoint.label, row.kind, row.split, row.observed_id
            moved[answer] += row.total / row.tokens
    most = max(map(abs, moved.values()))
    if most <= FIRST_ORDER_NATS:
        return ""
    return (
        f" The step would move an answer by up to {number(most, 2)} nats per token, too far "
        "for first order to hold: read the numbers as proportions, or lower the learning rate."
    )


def _step(checkpoint: CheckpointForces) -> str:
    facts = checkpoint.facts
    rate = f"learning rate {number(facts.learning_rate)}"
    if facts.adapters or facts.last_layers:
        rate += f", of the {_moving(facts)} alone"
    if facts.step is None:
        return f"a gradient step with {rate}"
    return f"the realised optimizer step {facts.step} of {checkpoint.label} ({rate})"


def _moving(facts: AnalysisFacts) -> str:
    layers = {None: "", 1: "last layer"}.get(facts.last_layers, f"last {facts.last_layers} layers")
    return " in the ".join(filter(None, ["adapters" if facts.adapters else "", layers]))


def _tiles(inputs: ForcePageInputs) -> list[Tile]:
    tiles = [*map(_checkpoint_tile, inputs.checkpoints[-3:])]
    if agreements := inputs.kernel.findings.agreements:
        least = min(agreements, key=lambda agreement: agreement.correlation)
        detail = f"least rank correlation, {least.first} to {least.second}"
        tiles.append(Tile(f"Kernel order {least.verdict}", number(least.correlation, 2), detail))
    return tiles


def _checkpoint_tile(checkpoint: CheckpointForces) -> Tile:
    """What the step does to an answer of the first kind, of training pairs if there are any."""
    kind = checkpoint.totals[0].kind
    rows = [row for row in checkpoint.totals if row.kind == kind]
    rows = [row for row in rows if row.split == "train"] or rows
    answers = len({(row.observed_id, row.split) for row in rows})
    plus = sum(row.from_chosen for row in rows) / answers
    minus = sum(row.from_rejected for row in rows) / answers
    return Tile(
        f"{checkpoint.label}: {kind} answer",
        number(plus + minus, 3, sign=True),
        f"nats per step: y⁺ {number(plus, 2, sign=True)}, y⁻ {number(minus, 2, sign=True)}",
    )


def _outside_all(checkpoints: Sequence[CheckpointForces]) -> str:
    """What the parameters that move leave out of the change under the step of all."""
    parts = [
        f"{number(100 * facts.outside, 2)}% at {checkpoint.label}"
        for checkpoint in checkpoints
        if (facts := checkpoint.facts).outside is not None
    ]
    if not parts:
        return ""
    return (
        " The maps are exact for the parameters that move; the changes of the observed answers "
        f"differ from those under the same step of all trained parameters by {join(parts)}."
    )


def _facts_section(checkpoints: Sequence[CheckpointForces]) -> Section:
    """What was computed at each checkpoint, and how accurately."""
    rows = [
        (
            checkpoint.label,
            objective_name(facts.objective),
            number(facts.learning_rate),
            "–" if facts.step is None else facts.step,
            f"{facts.observed_tokens} × {facts.updating_tokens}",
            facts.route,
            "–" if facts.sum_error is None else number(facts.sum_error, 2),
            "–" if facts.outside is None else number(facts.outside, 2),
            *map(number, (fit.cosine, fit.norm_ratio, fit.sign_agreement)),
        )
        for checkpoint in checkpoints
        for facts, fit in ((checkpoint.facts, checkpoint.facts.last_layer),)
    ]
    errors = [checkpoint.facts.sum_error for checkpoint in checkpoints]
    checked = [error for error in errors if error is not None]
    return section(
        "maps",
        "How it was computed",
        f"Sums of the maps differ from forward-mode derivatives along the step by at most "
        f"{number(max(checked), 2)}, relative.{_outside_all(checkpoints)}"
        if checked
        else "",
        table(
            (
                "checkpoint",
                "objective",
                "learning rate",
                "recorded step",
                "tokens",
                "route",
                "error of sums",
                "outside",
                "cosine",
                "size",
                "signs",
            ),
            rows,
            "ssnnnsnnnnn",
        ),
        note="The store keeps the maps with their manifest in the folder map of each analysis; "
        "ForceMap.open reads them. Outside: how far the change by the parameters that move is from "
        "that by all trained ones, relative. The last three columns are the last layer's map "
        "against the whole: cosine, ratio of norms, share of equal signs.",
    )
