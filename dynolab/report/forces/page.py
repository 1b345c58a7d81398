"""The page of a force analysis: what pushes what, by which parameters, and whether it lasts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from dynolab.report.forces.kernel import kernel_size_figure, stability_figure
from dynolab.report.forces.pair_matrix import pair_matrix_figure
from dynolab.report.forces.parts import block_figure, last_layer_figure, terms_figure
from dynolab.report.forces.token_map import token_map_choice_figure
from dynolab.report.inputs.study import CheckpointForces, ForcePageInputs
from dynolab.report.page import Page, Words, table, write_page
from dynolab.report.style import objective_name
from dynolab.report.text import number
from dynolab.results.forces import UNEXPLAINED

FIRST_ORDER_NATS = 0.5  # per token; from there on the second order is a large part of the change


def write_force_page(inputs: ForcePageInputs, folder: Path) -> None:
    """Writes the self-contained `forces.html`, and every figure as a file in `figures/`."""
    checkpoints = inputs.checkpoints
    moved: defaultdict[tuple[str, str, str, str], float] = defaultdict(float)
    for checkpoint in checkpoints:
        for row in checkpoint.totals:
            moved[checkpoint.label, row.kind, row.split, row.observed_id] += row.total / row.tokens
    most = max(map(abs, moved.values()))
    shares = {each.label: each.facts.unexplained for each in checkpoints}
    errors = [e for each in checkpoints if (e := each.facts.sum_error) is not None]
    words = Words(
        "forces.html",
        inputs=inputs,
        facts=checkpoints[0].facts,
        left_out=max(each.facts.left_out for each in checkpoints),
        most=most if most > FIRST_ORDER_NATS else None,
        unexplained={at: x for at, x in shares.items() if x is not None and x > UNEXPLAINED},
        error=max(errors, default=None),
    )
    maps = [(each.label, token_map) for each in checkpoints for token_map in each.token_maps]
    page = Page(
        name=inputs.name,
        lead=words("lead"),
        content=[
            pair_matrix_figure(checkpoints),
            token_map_choice_figure(maps),
            block_figure(checkpoints),
            last_layer_figure(checkpoints),
            terms_figure(checkpoints),
            kernel_size_figure(inputs.kernel),
            stability_figure(inputs.kernel),
            words.section("maps", _facts_table(checkpoints)),
        ],
        settings=inputs.settings,
        stages=inputs.stages,
    )
    write_page(page, folder, "forces.html")


def _facts_table(checkpoints: Sequence[CheckpointForces]) -> Markup:
    """What was computed at each checkpoint, and how accurately."""
    rows = [
        (
            checkpoint.label,
            objective_name(facts.objective),
            number(facts.learning_rate),
            "–" if facts.step is None else facts.step,
            f"{facts.observed_tokens} × {facts.updating_tokens}",
            _moving(facts.adapters, facts.last_layers),
            *(number(error, 2) for error in (facts.sum_error, facts.outside)),
            *map(number, (fit.cosine, fit.norm_ratio, fit.sign_agreement)),
        )
        for checkpoint in checkpoints
        for facts, fit in ((checkpoint.facts, checkpoint.facts.last_layer),)
    ]
    texts = ("checkpoint", "objective", "learning rate", "recorded step", "tokens", "moving")
    numbers = ("error of sums", "outside", "cosine of the head", "its size", "its signs")
    return table((*texts, *numbers), rows, "ssnnnsnnnnn")


def _moving(adapters: bool, last_layers: int | None) -> str:
    """The parameters that the step moves."""
    layers = "" if last_layers is None else f"last {last_layers} layers"
    return ", ".join(filter(None, ("adapters" if adapters else "", layers))) or "all"
