"""Training stages: SFT and preference optimisation, on DeepSpeed ranks or in this process."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from dynolab.costs.machines import StageCost
from dynolab.costs.memory import FP32
from dynolab.data.batches import draw
from dynolab.data.rows import ProbeRow, read_rows, read_value
from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from dynolab.forces.ledger.watched import check_kinds
from dynolab.likelihood.checked import CHECKS, note_check
from dynolab.results.study import TrainingSummary
from dynolab.rollouts.rewards import Rewards
from dynolab.training.alarm import check_watched
from dynolab.training.best import check_metric
from dynolab.training.config import GroupTrainConfig, LoopConfig, TrainConfig, ZeroStage
from dynolab.training.dose import rows_to_protect
from dynolab.training.examples import (
    Examples,
    check_rows as check_objective,
    load_prompts,
    training_encoder,
)
from dynolab.training.job import TrainJob
from tasks.ranks.train import run
from tasks.runtime.launch.launcher import launch_ranks
from tasks.runtime.launch.notice import Notice
from tasks.runtime.stage import Stage
from tasks.runtime.system.settings import Settings
from tasks.runtime.training_monitor import TrainingMonitor
from tasks.runtime.work import Work
from tasks.shared.costs import Costs, Reads

Config = TypeVar("Config", bound=LoopConfig)

RECORDS = "records"
"""Folder of this machine's cache with the tensors of recorded steps (`RecordCache`)."""

STEPS, STEPS_BYTES, DAY = "steps", 2**31, 86_400
"""Folder of the cache with all steps of trainings by their address, what those of one may take, and
the seconds after which they leave."""

COPIES = 5
"""A recorded step: weights before and after it and the optimizer's tensors, at most five copies of
the model."""


def train(work: Work[TrainConfig]) -> dict[str, float]:
    """Trains input `model` on the rows of input `data`."""
    return run_training(work, work.input_folder("data") / "train.jsonl")


def train_on_groups(work: Work[GroupTrainConfig]) -> dict[str, float]:
    """Trains input `model` on the prompts of input `prompts`; input `data` has the probes."""
    return run_training(work, work.input_folder("prompts") / "train.jsonl")


def run_training(
    work: Work[Config], examples: Path, probes: Path | None = None
) -> dict[str, float]:
    """Trains input `model`, resuming from the newest resume state, if any.

    If there is none, from the newest of the same training on another number of ranks.

    **Arguments:** `probes`: file of the watched rows; default: `probes.jsonl` of input `data`.

    Results: `model/`, `metrics.jsonl`, `probes.jsonl`, `forces/step-N/` (records of steps without
    their tensors, which this machine's cache takes; `tasks.shared.replay` reads both),
    `summary.json`, `ledger.jsonl` if the config has a ledger.
    """
    config = work.config
    watches = bool(config.probe_every or config.ledger)
    if probes is None and watches:
        probes = work.input_folder("data") / "probes.jsonl"
    if (resume := newest_state(work)) is not None:
        work.tracker.set_tags({"resumed.step": str(resume[0])})
    states = work.scratch / "resume"
    model = work.input_folder("model", "model")
    steps = work.cache / STEPS / work.address
    for folder in (work.cache / STEPS).glob("*/*"):
        if time.time() - folder.stat().st_mtime > DAY or (folder == steps and resume is None):
            shutil.rmtree(folder, ignore_errors=True)
    size = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    job = TrainJob(
        config=config,
        model=model,
        examples=examples,
        probes=probes if watches else None,
        reference_cache=work.cache / "reference",
        record_cache=work.cache / RECORDS,
        all_steps=steps if keeps_steps(config, size) else None,
        output=work.output,
        logs=work.logs,
        resume_out=states,
        resume_from=resume[1] if resume else None,
    )
    check_rows(job)
    work.step, work.world_size = config.steps, config.engine.ranks
    if config.engine.kind == "deepspeed":
        work.zero_stage = config.engine.zero_stage
    begin = resume[0] if resume else 0
    with TrainingMonitor(work, states, config.steps, begin=begin) as monitor:
        start(job, work, monitor.check)
    shutil.rmtree(states, ignore_errors=True)
    summary = read_value(work.output / "summary.json", TrainingSummary)
    work.step = summary.steps
    checks = work.logs / CHECKS  # measured by rank 0, whose logs may be on another host
    for model, figures in json.loads(checks.read_text()).items() if checks.is_file() else ():
        note_check(model, figures)
    stopped = {"stopped_at": float(summary.steps)} if summary.steps < config.steps else {}
    best = summary.best
    best_metrics = {"best_step": float(best.step), "best_value": best.value} if best else {}
    return {
        **summary.rows,
        **stopped,
        **best_metrics,
        "seconds": work.seconds,
        "resumed_from": float(begin),
    }


def keeps_steps(config: LoopConfig, model_bytes: int) -> bool:
    """Whether a training keeps all its steps, of a model of so many bytes."""
    return config.keep_steps and COPIES * model_bytes * config.steps <= STEPS_BYTES


def newest_state(work: Work[Config]) -> tuple[int, Path] | None:
    """The newest resume state; without any, that of the same training on other ranks.

    Those of another ZeRO stage count, too.
    """
    if (resume := work.newest_resume()) is not None:
        return resume
    settings, states = work.config.model_dump(), list[tuple[int, Path]]()
    size = work.config.batch_size
    ranks = (number for number in range(1, size + 1) if size % number == 0)
    for number, stage in product(ranks, get_args(ZeroStage)):
        engine = {**settings["engine"], "ranks": number, "zero_stage": stage}
        with suppress(ConfigError, ValidationError):  # not all fit the other settings
            other_config = type(work.config).model_validate({**settings, "engine": engine})
            states += filter(None, [work.newest_resume_of(other_config)])
    return max(states, key=lambda state: state[0], default=None)


def check_probes(config: LoopConfig, probes: Sequence[ProbeRow]) -> None:
    """Raises `ConfigError` for settings that need other watched answers than there are."""
    check_watched(config.alarm, probes)
    if config.ledger is not None:
        check_kinds(config.ledger.kinds, probes, "ledger.kinds")
    if config.best is not None:
        check_metric(config.best, probes)


def check_rows(job: TrainJob) -> None:
    """Raises `ConfigError` for rows and settings that cannot be trained, before any rank starts."""
    from models.language import folder_context, load_tokenizer

    config = job.config
    check_probes(config, list(read_rows(job.probes, ProbeRow)) if job.probes else [])
    encoder = training_encoder(config, load_tokenizer(job.model), folder_context(job.model))
    if isinstance(config, GroupTrainConfig):
        Rewards(config.rewards)
        load_prompts(job.examples, encoder, config.max_new_tokens)
    else:
        rows = Examples(job.examples, encoder, config.objective)
        if config.overlong == "error":
            for step in range(config.steps):
                for row in draw(step, config.batch_size, len(rows), config.seed):
                    rows[row]  # encodes it
        if config.designed_dose is not None:
            rows_to_protect(config, rows)


def start(job: TrainJob, work: Work[Any], while_running: Callable[[], None]) -> None:
    """Runs the job: by torchrun where the engine needs ranks, else here.

    **Arguments:** `while_running`: called again and again while ranks run; its error ends them.
    """
    settings = Settings.from_environment()
    with Notice(settings.grace_seconds, job.stop) as notice:

        def check() -> None:
            while_running()
            notice.check()

        if job.config.engine.kind == "plain":
            run(job)
            check()
        else:
            file = work.scratch / "job.json"
            file.write_text(job.model_dump_json(indent=1))
            launch_ranks(
                "tasks.ranks.train",
                file,
                ranks=job.config.engine.ranks,
                logs=work.logs,
                environment={},
                while_running=check,
                hosts=settings.hosts,
                rendezvous=settings.rendezvous,
            )
        if not (job.output / "summary.json").exists():
            notice.hand_on()


def estimate(costs: Costs, config: LoopConfig, reads: Reads) -> StageCost:
    """What a training takes. **Raises** `ConfigError` for rows that it would refuse."""
    inputs = costs.inputs
    if isinstance(reads.get("data"), DataConfig) and inputs.at_hand:
        check_probes(config, inputs.loaded.probes)
        if isinstance(config, TrainConfig) and not inputs.gives_prompts:
            _check_planned(costs, config)
    if keeps_steps(config, FP32 * inputs.shape().parameters):
        config = config.model_copy(update={"record_steps": tuple(range(config.steps))})
    return costs.training(config)


def _check_planned(costs: Costs, config: TrainConfig) -> None:
    inputs = costs.inputs
    check_objective(inputs.loaded.pairs, config.objective)
    rows, limit = costs.rows(config.max_length), costs.limit(config.max_length)
    beyond = inputs.overlong[limit]
    if beyond and config.overlong == "error":
        raise ConfigError(
            "overlong",
            "error",
            f"{beyond} of {len(rows)} rows exceed the context of {limit} tokens; set it to "
            "drop, truncate_left, keep_start or keep_end, or use a model with a longer context",
        )


KEEPS_STEPS = ("keep_steps",)
SFT = Stage("sft", 6, train, KEEPS_STEPS, estimate)
PREFERENCE = Stage("preference", 6, train, KEEPS_STEPS, estimate)
GROUP = Stage("group", 6, train_on_groups, KEEPS_STEPS, estimate)
