"""Stage `ledger`: what every response of a whole training did to the watched answers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, Self

import numpy as np
from jaxtyping import Float
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from dynolab.costs.machines import StageCost
from dynolab.costs.memory import FP32, ledger_copies, recorded_states
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.rows import ProbeRow, first_pairs, read_rows, read_value
from dynolab.data.token_texts import token_string
from dynolab.errors import ConfigError, under_field
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import WatchedFunctional
from dynolab.forces.ledger.measured import Source, measured_means, vocabulary_logps
from dynolab.forces.ledger.stretches import in_stretches
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.forces.ledger.watched import (
    encoded_answers,
    kind_means,
    sampled_steps,
    single_answers,
)
from dynolab.forces.map.token_map import MAP_TOKENS, build_token_map
from dynolab.results.study import TrainingSummary
from dynolab.rollouts.rewards import RewardConfig, Rewards
from dynolab.training.config import GroupTrainConfig, TrainConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.costs import Costs, Reads
from tasks.shared.policies import adapter_folder, load_encoder, load_policy
from tasks.shared.replay import Replay, learned_steps
from tasks.shared.selection import moved_most
from tasks.training import STEPS, keeps_steps

CARRY, WAITING = "carry", "waiting"
"""Folders of a resume state, and of functionals that do not fit into memory with the others."""

STATES = 10
"""Resume states of a whole ledger, at most: each holds a copy of the weights per functional."""


class LedgerConfig(StageConfig):
    """What is accounted for."""

    pairs: int = Field(
        8,
        ge=1,
        description="Pairs of each split: the mean over their answers of a kind has an account.",
    )
    answers: int = Field(
        10,
        ge=0,
        description="Training pairs with an account of their own: whose chosen answers fell most.",
    )
    heldout_answers: int = Field(5, ge=0, description="Held-out pairs with an account, likewise.")
    every: int = Field(
        1,
        ge=1,
        description="One step is drawn of so many, and sums have intervals; 1: every step.",
    )
    # Excluded at its default, so that results from before this field keep their keys.
    slopes_every: int = Field(
        1,
        ge=1,
        exclude_if=lambda steps: steps == 1,
        description="Gradients of what is watched are taken at both ends of so many steps, and lie "
        "on a line between: quicker, and what that leaves unexplained is part of the residual.",
    )
    # Excluded without one, as `slopes_every`.
    token_map: bool = Field(
        False,
        exclude_if=lambda is_set: not is_set,
        description="Also map the pull, token by token, that lowered the answer that fell most.",
    )
    # Excluded without any, as `slopes_every`.
    measures: tuple[Literal["entropy", "kl", "margin", "contrast"], ...] = Field(
        (),
        exclude_if=lambda measures: not measures,
        description="Also accounted for: entropy of the next token and KL to the model that the "
        "training began with, over the chosen answers' tokens; margin of chosen over rejected; "
        "contrast of unwanted and wanted answers.",
    )
    rewards: tuple[RewardConfig, ...] = Field(
        (),
        exclude_if=lambda rewards: not rewards,
        description="Also accounted for: what moved the mean of these rules' rewards over the "
        "watched answers, by the gradient of log π.",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Padded tokens of one forward; default: 1,024 on a CPU, by the model 512 to "
        "16,384 on a GPU.",
    )
    disk_bytes: int | None = Field(
        None,
        ge=1,
        description="Of records and resume states at once, where so many are enough; more needs "
        "fewer replays' starts. Default: half of what is free, 2 GiB at least.",
    )

    @model_validator(mode="after")
    def _spaced_in_one_way(self) -> Self:
        if self.every > 1 and self.slopes_every > 1:
            remedy = "needs every step; set slopes_every: 1, or every: 1"
            raise ConfigError("slopes_every", self.slopes_every, remedy)
        return self

    @field_validator("rewards")
    @classmethod
    def _check_rewards(cls, rewards: tuple[RewardConfig, ...]) -> tuple[RewardConfig, ...]:
        if rewards:
            with under_field("rewards"):
                Rewards(rewards)
        return rewards


class LedgerJob(LedgerConfig):
    """The account of a training with these settings."""

    training: TrainConfig | GroupTrainConfig = Field(union_mode="left_to_right")

    @model_validator(mode="after")
    def _can_be_replayed(self) -> Self:
        self.training.check_replayable()
        return self


def keep_ledger(work: Work[LedgerJob]) -> dict[str, float]:
    """Reads inputs `data`, `model`, which the training began with, `trained`, and `prompts` of a
    training on groups; with `behaviour`, its answers are watched in place of the data's.

    Results: the tables of `dynolab.results.ledger`, and `token_map.json` if one is wanted.
    """

    config, trained, source = work.config, work.input_folder("trained"), work.inputs["trained"]
    steps = read_value(trained / "summary.json", TrainingSummary).steps
    model = work.input_folder("model", "model")
    folder = work.input_folder("trained", "model")
    encoder = load_encoder(folder)
    rows, functionals = zip(*watched(work, encoder), strict=True)
    policy = load_policy(folder, adapter_folder(work, "trained"), copies=GPU_COPIES)
    singles = [
        (row.name, functional.terms[0].sequence)
        for row, functional in zip(rows, functionals, strict=True)
        if row.single
    ]
    ledger = Ledger(
        policy,
        functionals,
        batch_tokens=config.batch_tokens,
        by_token=[number for number, row in enumerate(rows) if row.single],
        every_step=config.every == 1,
        waiting=work.scratch / WAITING,
    )
    learned = learned_steps(trained / "metrics.jsonl")
    weights = sampled_steps(learned, config.every, config.training.seed)
    gaps = dict(zip(weights, np.diff([*map(learned.index, weights), len(learned)]), strict=True))
    replay = Replay(
        work=work,
        config=config.training,
        model=model,
        examples=work.input_folder("prompts" if "prompts" in work.inputs else "data")
        / "train.jsonl",
        metrics=trained / "metrics.jsonl",
        steps=work.cache / STEPS / source.stage / source.key,
    )
    segment = replay.segment(steps, config.disk_bytes, every=config.every)
    read = partial(token_string, tokenizer=encoder.tokenizer)
    tables = LedgerTables([row.name for row in rows], read, every=config.every)
    done = saved = _go_on(work, ledger, tables)
    remaining = [step for step in weights if step < steps - done]
    # The first steps of segments: where a ledger that is ended goes on.
    begins = {step for early, step in pairwise(remaining) if early // segment < step // segment}
    with work.shown(steps) as progress:
        records = replay.backwards(
            remaining, segment, lambda text: progress.update(progress.step, text)
        )
        begun = False  # a segment, in the stretch that is entered
        for record, stretch in in_stretches(records, config.slopes_every):
            step = record.facts.step
            entries = ledger.enter(record, gap=int(gaps[step]), stretch=stretch)
            tables.add(entries, weights[step])
            done = steps - step
            progress.update(done, f"step {step}")
            begun |= step in begins
            if stretch.place == 0:
                if begun and (done - saved) * STATES >= steps:
                    _keep(work, ledger, tables, done)
                    saved = done
                begun = False
        fitting = [name for name, sequence in singles if sequence.response_length <= MAP_TOKENS]
        names = fitting or [name for name, _ in singles]
        if config.token_map and (pull := tables.hardest_pull(names, MAP_TOKENS)):
            progress.update(done, f"maps step {pull.step}")
            (record,) = replay.backwards([pull.step], segment, lambda _: None)
            token_map = build_token_map(
                record,
                policy,
                encoder.tokenizer,
                stage=record.facts.objective.name,
                updating_id=pull.example,
                observed_id=pull.functional,
                observed=dict(singles)[pull.functional],
            )
            (work.output / "token_map.json").write_text(token_map.model_dump_json())
    if not done:
        raise ConfigError("trained", steps, "no step of the training moved a weight; train another")
    shutil.rmtree(work.cache / STEPS / source.stage / source.key, ignore_errors=True)
    tables.write(work.output)
    work.write_tables(functionals=rows)
    summary = tables.summary()
    (work.output / "ledger.json").write_text(summary.model_dump_json(indent=1))
    numbers = {name: value for name, value in summary if name not in ("lines", "checks")}
    return work.log_metrics({f"ledger/{name}": float(value) for name, value in numbers.items()})


def watched(work: Work[LedgerJob], encoder: Encoder) -> list[WatchedFunctional]:
    """What is accounted for: means over the answers of a kind, and single answers; of a behaviour
    the measures alone.

    **Raises:** `ConfigError` where no watched answer fits the model's context.
    """

    if "behaviour" in work.inputs:
        probes = work.input_folder("behaviour") / "probes.jsonl"
        return _measured(work, list(read_rows(probes, ProbeRow)), encoder)
    rows = list(read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow))
    trained, config = work.input_folder("trained"), work.config
    every = [
        *kind_means(rows, encoder, config.pairs),
        *_measured(work, rows, encoder),
        *single_answers(rows, encoder, "train", moved_most(trained, "train", config.answers)),
        *single_answers(
            rows, encoder, "heldout", moved_most(trained, "heldout", config.heldout_answers)
        ),
    ]
    if not every:
        raise ConfigError("ledger.pairs", work.config.pairs, "no watched answer fits the context")
    return every


def _measured(
    work: Work[LedgerJob], rows: Sequence[ProbeRow], encoder: Encoder
) -> list[WatchedFunctional]:
    """The measures that are asked for, over the answers of the same pairs as the means."""
    config = work.config
    kinds = [*config.measures, *(["reward"] if config.rewards else [])]
    if not kinds:
        return []

    def reference(answers: Sequence[Encoded]) -> list[Float[Tensor, "tokens vocabulary"]]:
        return vocabulary_logps(load_policy(work.input_folder("model", "model")), answers)

    source = Source(reference, Rewards(config.rewards) if config.rewards else None)
    answers = encoded_answers(first_pairs(rows, config.pairs), encoder)
    return measured_means(kinds, answers, source, "ledger.measures")


def _keep(work: Work[LedgerJob], ledger: Ledger, tables: LedgerTables, done: int) -> None:
    """Keeps what is done, so that a ledger that is ended goes on from here."""
    with TemporaryDirectory(dir=work.scratch) as folder:
        ledger.save(Path(folder) / CARRY)
        tables.write(Path(folder))
        work.commit_resume(done, Path(folder))


def _go_on(work: Work[LedgerJob], ledger: Ledger, tables: LedgerTables) -> int:
    """Reads what an ended attempt has kept; returns how many steps it had entered."""
    state = work.newest_resume()
    if state is None:
        return 0
    done, folder = state
    ledger.load(folder / CARRY)
    tables.load(folder)
    return done


GPU_COPIES = 9
"""On a GPU, one functional at a time: the model's, both ends of a step, the three of
`ledger_copies`, and three while a line is split into tokens. What else `ledger_copies` counts, and
the record itself, is in main memory. Not measured on a GPU."""


def estimate(costs: Costs, config: LedgerJob, reads: Reads) -> StageCost:
    """Gradients of observed answers where slopes are taken, and of each batch, and a training that
    runs twice more, at most, without its probes, the reference's scoring and resume states; not at
    all where the training keeps its steps. Memory is what it cannot do without: one functional at
    a time."""
    training, optimizer = config.training, config.training.optimizer
    batch = costs.batch_tokens(config.batch_tokens)
    frozen, copy = costs.weights(training, batch)
    steps, replays = tuple(range(0, training.steps, config.every)), list[StageCost]()
    if not keeps_steps(reads.get("trained", training), FP32 * costs.inputs.shape().parameters):
        # As a whole once, and each segment from a state: a step is recorded in one of both.
        for recorded in ((), steps):
            changes = {"record_steps": recorded, "probe_every": 0, "checkpoint_every": 0}
            replays.append(costs.training(training.model_copy(update=changes), again=True))
    responses = training.batch_size * getattr(training, "completions", 2)
    single_answers = config.answers + config.heldout_answers
    measures = 2 * (len(config.measures) + 2 * bool(config.rewards))  # of both splits
    functionals = costs.inputs.functionals + measures
    watched = functionals * config.pairs + 4 * single_answers
    slopes_taken = -(-len(steps) // config.slopes_every)
    answers = slopes_taken * watched + len(steps) * 2 * responses
    cost = costs.passes(answers * costs.answer)
    every_step = config.every == 1
    copies = 1 + ledger_copies(optimizer, functionals=1, responses=responses, every_step=every_step)
    rank_bytes, host_bytes = frozen + copies * copy, 0
    if costs.machine.gpus:
        rank_bytes = frozen + (GPU_COPIES + (not every_step)) * copy
        host_bytes = (responses + 4 + 2 * recorded_states(optimizer)) * copy
        if rank_bytes > costs.machine.device_bytes:
            # The weight, and its gradient of each answer of a batch.
            rows = min(responses, max(1, batch // costs.answer)) if training.lora is None else 0
            cost = costs.streamed(cost, training, batch, 1 + rows, copies * copy)
            rank_bytes, host_bytes = cost.rank_bytes, cost.host_bytes
    records = len(steps) * copy * (2 + recorded_states(optimizer))
    return replace(
        cost,
        hours=cost.hours + sum(replay.hours for replay in replays),
        sending_hours=sum(replay.sending_hours for replay in replays),
        rank_bytes=max([rank_bytes, *(replay.rank_bytes for replay in replays)]),
        host_bytes=max([host_bytes, *(replay.host_bytes for replay in replays)]),
        read=records,
        written=records if replays else 0,
    )


LEDGER = Stage("ledger", 7, keep_ledger, ("disk_bytes", "batch_tokens"), estimate)
"""`disk_bytes` decides how often training is run again, not what comes of it."""
