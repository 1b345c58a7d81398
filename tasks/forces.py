"""Stage `forces`: how each part of the recorded steps changed every watched answer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from dynolab.costs.machines import StageCost
from dynolab.data.batches import REJECTED
from dynolab.data.rows import ProbeRow, first_pairs, json_line, read_rows
from dynolab.forces import build_token_map, step_forces, step_layers, step_validity
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.forces.ledger.measured import ReferenceLogps, vocabulary_logps
from dynolab.forces.ledger.pushes import example_pushes
from dynolab.forces.ledger.responses import gradients_of
from dynolab.forces.map.token_map import MAP_TOKENS
from dynolab.forces.step.step_forces import Start, force_metrics, step_measures
from dynolab.grouping import evenly_spaced
from dynolab.objectives import build_objective
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.costs import AnalysisCopies, Costs, Reads
from tasks.shared.policies import adapter_folder, load_encoder, load_policy
from tasks.shared.replay import record_folders, recorded_step, recorded_steps, started_from
from tasks.shared.selection import moved_most

if TYPE_CHECKING:
    from dynolab.data.encode import Encoded, Encoder
    from dynolab.forces.ledger.grouped import GroupedGradients
    from dynolab.forces.step.step_forces import StepForces
    from dynolab.training.step_record import StepRecord


FEW_PAIRS = 2
"""Pairs of each split that layers and the radius of validity are measured on: both take several
times the seconds of first order."""

MAPPED = 4
"""Chosen answers whose pushes are compared; the strongest has a token map."""


class ForcesConfig(StageConfig):
    """Which answers are watched, and in which batches."""

    pairs: int = Field(40, ge=1, description="Pairs of each split whose answers are watched.")
    detailed_steps: int = Field(
        2,
        ge=0,
        description="Recorded steps, spread from the first to the last, of which the forces on "
        "layers and how far first order carries are measured, too: several times the seconds.",
    )
    # Excluded without any, so that results from before this field keep their keys.
    measures: tuple[Literal["entropy", "kl"], ...] = Field(
        (),
        exclude_if=lambda measures: not measures,
        description="Also taken apart: entropy of the next token and KL to the model that the "
        "training began with, summed over each chosen answer's tokens.",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Padded tokens of one forward; default: 1,024 on a CPU, by the model 512 to "
        "16,384 on a GPU.",
    )


def measure_forces(work: Work[ForcesConfig]) -> dict[str, float]:
    """Reads inputs `data` and `trained`, a training stage with recorded steps, and what that read.

    Results: `forces.jsonl`, `replay.json`, `layers.jsonl` (`LayerForce`), `validity.jsonl`
    (`Validity`; empty for a model that cannot be differentiated twice), and `token_map.json` of the
    strongest push of a recorded step's example on one of the chosen answers that fell most, or rose
    most under a loss that pushes no answer down.
    """

    rows = list(read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow))
    probes = first_pairs(rows, work.config.pairs)
    few = first_pairs(rows, min(work.config.pairs, FEW_PAIRS))
    folder = work.input_folder("trained", "model")
    policy = load_policy(folder, adapter_folder(work, "trained"), copies=COPIES.gpu)
    encoder = load_encoder(folder)
    twice = derivatives_of(policy).agrees("second")
    measures = step_measures(work.config.measures, _reference(work))
    tokens = work.config.batch_tokens
    replays, validities, layers = [], [], []
    start: Start | None = None
    answers: list[tuple[ProbeRow, Encoded]] = []
    gradients: GroupedGradients | None = None
    pushes: list[Push] = []
    folders = record_folders(work, "trained")
    detailed = evenly_spaced(range(len(folders)), work.config.detailed_steps)
    with (
        work.shown(len(folders)) as progress,
        (work.output / "forces.jsonl").open("w") as file,
    ):
        for number, record in enumerate(recorded_steps(work, "trained", folders), start=1):
            objective = record.facts.objective.name
            forces = step_forces(
                record,
                policy,
                probes,
                encoder,
                stage=objective,
                batch_tokens=tokens,
                measures=measures,
            )
            file.writelines(map(json_line, forces.rows))
            replays.append(forces.replay)
            up = REJECTED not in build_objective(record.facts.objective).sides
            answers = answers or _mapped_answers(work, rows, encoder, up=up)
            gradients = gradients or gradients_of(record, policy)
            if answers:
                push = _strongest(record, gradients, forces, answers, up=up)
                pushes = [max([*pushes, push], key=lambda candidate: candidate.nats)]
            work.tracker.log_metrics(force_metrics(forces.rows), record.facts.step)
            start = start or Start(record.facts.step, record.before)
            if number - 1 in detailed:
                layers += step_layers(
                    record, policy, few, encoder, stage=objective, batch_tokens=tokens
                )
                changes = [None] if start.step == record.facts.step else [None, start]
                validities += [
                    step_validity(
                        record,
                        policy,
                        few,
                        encoder,
                        stage=objective,
                        batch_tokens=tokens,
                        since=since,
                    )
                    for since in changes
                    if twice
                ]
            progress.update(number, f"step {record.facts.step}")
    dumped = [replay.model_dump() for replay in replays]
    (work.output / "replay.json").write_text(json.dumps(dumped, indent=1))
    work.write_tables(validity=validities, layers=layers)
    for push in pushes:
        record = recorded_step(work, "trained", push.step)
        token_map = build_token_map(
            record,
            policy,
            encoder.tokenizer,
            stage=record.facts.objective.name,
            updating_id=push.example,
            observed_id=push.answer,
            observed=push.observed,
            step=push.forces,
        )
        (work.output / "token_map.json").write_text(token_map.model_dump_json())
    # The last validity is that of all steps together if several were recorded.
    first_order = {
        f"first_order/{name}": value
        for last in validities[-1:]
        for name, value in (
            ("unexplained", last.unexplained),
            ("radius", last.predicted),
            ("radius_measured", last.measured),
        )
        if math.isfinite(value)
    }
    return {
        "seconds": work.seconds,
        "recorded_steps": float(len(replays)),
        "largest_replay_error": max((replay.replay_error for replay in replays), default=0.0),
        "largest_closure_error": max((replay.closure_error for replay in replays), default=0.0),
        **first_order,
    }


def _reference(work: Work[ForcesConfig]) -> ReferenceLogps | None:
    """log π of the model that the training began with, where it is asked for."""
    if "kl" not in work.config.measures:
        return None
    began_with = load_policy(started_from(work, "trained") / "model")
    return partial(vocabulary_logps, began_with)


@dataclass(frozen=True)
class Push:
    """How hard an example pushed an answer in one recorded step, in nats."""

    nats: float
    step: int
    forces: StepForces
    example: str
    answer: str
    observed: Encoded


def _mapped_answers(
    work: Work[ForcesConfig], rows: Sequence[ProbeRow], encoder: Encoder, *, up: bool
) -> list[tuple[ProbeRow, Encoded]]:
    """The chosen answers of training pairs that fell most over the training; rose, with `up`.

    Only answers that a map has room for, if there are any.
    """

    chosen = {row.pair_id: row for row in rows if row.split == "train" and row.kind == "chosen"}
    moved = moved_most(work.input_folder("trained"), "train", len(chosen), up=up)
    answers = [
        (row, observed)
        for row in (chosen[name] for name in moved or chosen)
        if (observed := encoder.probe(row)) is not None
    ]
    fitting = [answer for answer in answers if answer[1].response_length <= MAP_TOKENS]
    return (fitting or answers)[:MAPPED]


def _strongest(
    record: StepRecord,
    gradients: GroupedGradients,
    forces: StepForces,
    answers: Sequence[tuple[ProbeRow, Encoded]],
    *,
    up: bool,
) -> Push:
    """The step's strongest push on one of the answers, downwards or `up`.

    It comes from the examples that a map has room for, or the shortest if none is.
    """

    lengths = [
        max(sequence.response_length for sequence in example.named().values())
        for example in record.examples
    ]
    observed = [encoded for _, encoded in answers]
    pushes = (1 if up else -1) * example_pushes(record, gradients, forces.gradient, observed)
    pushes[:, torch.tensor(lengths) > max(MAP_TOKENS, min(lengths))] = -math.inf
    place, number = divmod(int(pushes.argmax()), len(lengths))
    row, encoded = answers[place]
    example = record.examples[number].id
    step = record.facts.step
    return Push(float(pushes.max()), step, forces, example, row.pair_id, encoded)


COPIES = AnalysisCopies(host=14, gpu=6, beside_gpu=11, fetched=5)


def estimate(costs: Costs, config: ForcesConfig, reads: Reads) -> StageCost:
    """The pairs' answers of every functional, twice for each recorded step."""
    steps, states = costs.recorded(reads)
    return costs.analysis(
        2 * steps * config.pairs * costs.inputs.functionals,
        COPIES,
        batch_tokens=config.batch_tokens,
        training=reads.get("trained"),
        states=states,
        records=steps,
    )


FORCES = Stage("forces", 8, measure_forces, ("batch_tokens",), estimate)
