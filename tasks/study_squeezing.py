"""Stage `squeezing`: squeezing index, first-order forecasts, and repetition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dynolab.costs.machines import StageCost
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow, first_pairs, read_rows, read_value
from dynolab.evaluation.samples import repetition
from dynolab.forces.function.derivatives import derivatives_of
from dynolab.grouping import grouped
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.results.study import (
    Answer,
    Generation,
    RisenMass,
    TokenProbability,
    TrainingSummary,
)
from dynolab.squeezing.forecast import forecasts
from dynolab.squeezing.index import Logits, answers_risen_mass, chosen_by_step, squeeze_index
from dynolab.squeezing.ladder import ladder
from dynolab.squeezing.position import SqueezedPosition
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.costs import AnalysisCopies, Costs, Reads
from tasks.shared.policies import adapter_folder, load_encoder, load_policy
from tasks.shared.replay import record_folders, recorded_steps

if TYPE_CHECKING:
    import torch

    from dynolab.forces.function.policy import PolicyFunction
    from dynolab.forces.function.weights import Weights

KINDS = ("chosen", "rejected")
Records = list[dict[str, Any]]


class SqueezingConfig(StageConfig):
    """Which answers are measured, and in which batches."""

    pairs: int = Field(24, ge=1, description="Pairs of each split whose answers are measured.")
    batch_tokens: int = Field(2_048, ge=1, description="Padded tokens of one forward.")


class SqueezingJob(SqueezingConfig):
    """The trainings by input name, each with the input name of the model it started from."""

    trainings: dict[str, str] = Field({"sft": "base", "preference": "sft"})
    main: str = Field("preference", description="The training whose metrics have no suffix.")


def measure_squeezing(work: Work[SqueezingJob]) -> dict[str, float]:
    """Reads inputs `data`, `probe` (if there is one), the trainings, and what those that record
    steps read.

    Results: `risen.jsonl`, where probability rose from the start of every training to each of its
    recorded steps and to its end; `forecasts.jsonl`, first-order forecasts of every recorded step;
    `ladder.jsonl`, what more of the theory adds to them (`dynolab.squeezing.ladder`);
    `position.jsonl`, the tokens at the main training's most squeezed position
    (`dynolab.squeezing.position`); `generations.jsonl`, how much the greedy answers of `probe`
    repeat themselves.

    Returns `squeeze/index` for the main training and `squeeze/index/<training>` for the others, on
    the chosen answers of training pairs; for the main training's rejected (else chosen) answers, as
    means over its recorded steps, `squeeze/forecast_auc`, `squeeze/forecast_auc_top`,
    `squeeze/last_layer` and `squeeze/ladder/<rung>`, each rung's AUC; and
    `squeeze/repeaters/<model>`, the share of the model's held-out answers that repeat themselves.
    """
    config = work.config
    risen: list[RisenMass] = []
    forecasts: Records = []
    rungs: Records = []
    position: list[TokenProbability] = []
    with work.shown(len(config.trainings)) as progress:
        for number, name in enumerate(config.trainings, start=1):
            training_risen, training_forecasts, training_rungs, of_main = _measure(work, name)
            risen += training_risen
            forecasts += training_forecasts
            rungs += training_rungs
            position += of_main
            progress.update(number, name)
        generations = list(_generations(work)) if "probe" in work.inputs else []
        work.write_tables(
            risen=risen,
            forecasts=forecasts,
            ladder=rungs,
            generations=generations,
            position=position,
        )
    work.log_tables(forecasts=forecasts, ladder=rungs, generations=generations)
    metrics = _means(work, forecasts, rungs) | _repeaters(generations)
    return _indices(work, risen) | work.log_metrics(metrics)


def _measure(
    work: Work[SqueezingJob], name: str
) -> tuple[list[RisenMass], Records, Records, list[TokenProbability]]:
    """A training's risen probability at its recorded steps and end, its steps' forecasts and rungs,
    and of the main training the most squeezed position.

    There are no rungs for a model without forward derivatives.
    """
    from models.language import load_language_model

    config, folder = work.config, work.input_folder(name)
    encoder = load_encoder(folder / "model")
    rows = [
        row
        for row in read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow)
        if row.kind in KINDS
    ]
    watched = first_pairs(rows, config.pairs)
    answers = [
        (row, probe)
        for row, probe in zip(watched, encoder.probes(watched), strict=True)
        if probe is not None
    ]
    policy = load_policy(folder / "model", adapter_folder(work, name))
    start = load_language_model(
        work.input_folder(config.trainings[name], "model"),
        tokenizer=encoder.tokenizer,
        device=policy.device,
    )
    steps = read_value(folder / "summary.json", TrainingSummary).steps
    before, after = ResponseLogits(start.eval()), partial(policy.logits, policy.cast({}))
    position = None
    if name == config.main:
        position = _squeezed_position(before, after, answers, encoder, policy.device)
    mass_of = partial(_risen, work, name, before, policy, answers)
    risen: list[RisenMass] = []
    step_forecasts: Records = []
    rungs: Records = []
    probabilities = position.rows(before, 0) if position else []
    forward = derivatives_of(policy).agrees("forward")
    for record in recorded_steps(work, name, record_folders(work, name)):
        step_forecasts += forecasts(record, policy, training=name, batch_tokens=config.batch_tokens)
        if forward:
            rungs += ladder(record, policy, training=name)
        if record.facts.step:
            risen += mass_of(record.before, record.facts.step)
            if position:
                state = partial(policy.logits, policy.cast(record.before))
                probabilities += position.rows(state, record.facts.step)
    if position:
        probabilities += position.rows(after, steps)
    return risen + mass_of({}, steps), step_forecasts, rungs, probabilities


def _squeezed_position(
    before: Logits,
    after: Logits,
    answers: Sequence[tuple[ProbeRow, Encoded]],
    encoder: Encoder,
    device: torch.device,
) -> SqueezedPosition | None:
    """The most squeezed position of the chosen answers of training pairs."""
    chosen = []
    rejected = {}
    for row, sequence in answers:
        if row.split == "train" and row.kind == "chosen":
            chosen.append((row, sequence))
        elif row.split == "train":
            rejected[row.pair_id] = sequence
    tokenizer = encoder.tokenizer

    def text(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens)))

    return SqueezedPosition.find(before, after, chosen, rejected, text, device)


def _risen(
    work: Work[SqueezingJob],
    name: str,
    before: Logits,
    policy: PolicyFunction,
    answers: Sequence[tuple[ProbeRow, Encoded]],
    weights: Weights,
    step: int,
) -> list[RisenMass]:
    """Risen probability from a training's start to the given weights of its policy."""

    sums = answers_risen_mass(
        before,
        partial(policy.logits, policy.cast(weights)),
        [sequence for _, sequence in answers],
        batch_tokens=work.config.batch_tokens,
        device=policy.device,
    )
    return [
        RisenMass(
            training=name,
            step=step,
            pair_id=row.pair_id,
            split=row.split,
            kind=row.kind,
            tokens=sequence.response_length,
            risen=risen,
            argmax=argmax,
            own=own_mass,
        )
        for (row, sequence), (risen, argmax, own_mass) in zip(answers, sums.tolist(), strict=True)
    ]


def _generations(work: Work[SqueezingJob]) -> Iterator[Generation]:
    """How much every greedy answer of the study's models repeats itself."""
    from models.language import load_tokenizer

    tokenizer = load_tokenizer(work.input_folder(work.config.main, "model"))
    for answer in read_rows(work.input_folder("probe") / "answers.jsonl", Answer):
        tokens = tokenizer.encode(answer.answer, add_special_tokens=False)
        yield Generation(
            model=answer.model,
            pair_id=answer.pair_id,
            split=answer.split,
            finished=answer.finished,
            **dict(repetition(tokens)),
        )


def _indices(work: Work[SqueezingJob], risen: Sequence[RisenMass]) -> dict[str, float]:
    """The index of every training at its end; logs the indices of its recorded steps to MLflow."""

    indices: dict[str, float] = {}
    for name, steps in chosen_by_step(risen).items():
        metric = "squeeze/index" if name == work.config.main else f"squeeze/index/{name}"
        for step in sorted(steps):
            index = squeeze_index(steps[step]).mean
            if math.isfinite(index):  # NaN if no probability rose
                work.tracker.log_metrics({metric: index}, step)
                indices[metric] = index
    return indices


def _means(work: Work[SqueezingJob], forecasts: Records, rungs: Records) -> dict[str, float]:
    """Means over the main training's recorded steps: of its forecasts, and every rung's AUC."""
    names = {"forecast_auc": "auc", "forecast_auc_top": "auc_top", "last_layer": "explained"}
    values: dict[str, list[float]] = {}
    for rows in (forecasts, rungs):
        main = [row for row in rows if row["training"] == work.config.main]
        for row in [row for row in main if row["side"] == "rejected"] or main:
            columns = {f"ladder/{row['rung']}": "auc"} if "rung" in row else names
            for name, column in columns.items():
                values.setdefault(f"squeeze/{name}", []).append(row[column])
    means = {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items()}
    return {name: value for name, value in means.items() if math.isfinite(value)}


def _repeaters(generations: Sequence[Generation]) -> dict[str, float]:
    """The share of every model's held-out answers that repeat themselves."""
    flags = grouped(
        (answer.model, answer.repeater) for answer in generations if answer.split == "heldout"
    )
    return {f"squeeze/repeaters/{name}": sum(marks) / len(marks) for name, marks in flags.items()}


COPIES = AnalysisCopies(host=10)


def estimate(costs: Costs, config: SqueezingJob, reads: Reads) -> StageCost:
    """The pairs' answers, 32 times for each recorded step."""
    steps, states = costs.recorded(reads)
    return costs.analysis(32 * steps * config.pairs, COPIES, states=states, records=steps)


SQUEEZING = Stage("squeezing", 3, measure_squeezing, ("batch_tokens",), estimate)
