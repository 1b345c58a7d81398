"""The training loop: probe, accumulate, step, record, checkpoint."""

from __future__ import annotations

import copy
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import Tensor

from dynolab import distributed
from dynolab.data.batches import Totals
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, json_line, read_rows, write_rows
from dynolab.errors import DIVERGED, ConfigError, Diverged
from dynolab.likelihood.arithmetic import check_float32_products, reproducible
from dynolab.likelihood.checked import CHECKS, checks_kept
from dynolab.likelihood.streamed import keep_frozen_narrow
from dynolab.likelihood.token_logps import ResponseLogits, causal_model, packing_width
from dynolab.objectives import build_objective
from dynolab.probes.score import ProbeScorer, mean_by_kind
from dynolab.results.study import OTHER_RANKS, MetricsLine, ProbeScore, TrainingSummary
from dynolab.training.adapters import (
    activations_checkpointed,
    add_adapters,
    prepare_checkpointing,
    save_merged,
)
from dynolab.training.alarm import Alarm, check_watched
from dynolab.training.best import FOLDER, Best
from dynolab.training.config import GroupTrainConfig
from dynolab.training.dose import Calibrator, Designer, DoseDesigner, with_doses
from dynolab.training.engine import Engine, PlainEngine, clip_factor, learning_rate
from dynolab.training.examples import Examples, Offline, Source, load_prompts, training_encoder
from dynolab.training.job import TrainJob
from dynolab.training.resume import load_state, save_state
from dynolab.training.sampled_examples import Online
from dynolab.training.shards import FILE_BYTES
from dynolab.training.step_batch import Recorded, StepExample, count_step, recorded
from dynolab.training.step_passes import StepPasses
from dynolab.training.step_record import (
    SECOND_MOMENT_AFTER,
    RecordCache,
    StepFacts,
    StepRecord,
    at_least_rounding,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


log = logging.getLogger(__name__)

StepObserver = Callable[[StepRecord], Mapping[str, float]]
"""Sees a step that was made; returns metrics of it."""

BuildObserver = Callable[["PreTrainedModel", Encoder, Sequence[ProbeRow], Path], StepObserver]
"""Makes an observer of a copy of the policy, its encoder, the watched rows and a file for lines."""


def train(
    job: TrainJob,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    build_observer: BuildObserver | None = None,
) -> None:
    """Runs a training job to its end; with several ranks, every rank calls it.

    **Arguments:**

    - `job`: settings and paths.
    - `policy`: the initial weights, as loaded from `job.model`.
    - `tokenizer`: the policy's tokenizer.
    - `build_observer`: of the steps that `job.config.ledger` names; called on rank 0.

    Writes `model/`, `metrics.jsonl`, `probes.jsonl`, `forces/step-N/` and `summary.json` into
    `job.output`, and resume states into `job.resume_out`. Ends early, with a resume state and
    without `model/` and `summary.json`, if the file `job.stop` appears.

    **Raises** `ConfigError` for invalid data or settings, `Diverged` if training diverges.
    """
    with reproducible(distributed.device()) if job.config.engine.reproducible else nullcontext():
        Trainer(job, policy, tokenizer, build_observer).run()


class Trainer:
    """One training run; `run` reads as the algorithm."""

    def __init__(
        self,
        job: TrainJob,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        build_observer: BuildObserver | None = None,
    ) -> None:
        self.job, self.config, self.tokenizer = job, job.config, tokenizer
        check_float32_products()
        if job.config.lora is not None:
            policy = add_adapters(policy, job.config.lora, job.config.seed)
        if job.config.engine.checkpoint_activations:
            prepare_checkpointing(causal_model(policy))
        self.policy = policy.eval()  # no dropout: a probe and a step see the same function
        self.objective = build_objective(job.config.objective)
        self.device = distributed.device()
        context = int(policy.config.max_position_embeddings)
        self.encoder = training_encoder(job.config, tokenizer, context)
        self.pad_id = int(
            tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        )
        self.designer: Designer | None = None
        self.source = self._build_source()
        self.passes = StepPasses(
            job.config,
            self.objective,
            self.designer,
            temperature=self.source.temperature,
            pad_id=self.pad_id,
        )
        self.probes = list(read_rows(job.probes, ProbeRow)) if job.probes else []
        check_watched(job.config.alarm, self.probes)
        self.build_observer = build_observer
        self.observer: StepObserver | None = None
        self.scorer: ProbeScorer | None = None
        self.alarm: Alarm | None = None
        self.best: Best | None = None
        self.master: dict[str, Tensor] | None = None

    def run(self) -> None:
        """The whole run."""
        job, config = self.job, self.config
        if distributed.rank() == 0:
            job.output.mkdir(parents=True, exist_ok=True)
        if config.engine.dtype == "bf16":
            self.master = self._to_bf16()
        with checks_kept() as checks:
            logits = ResponseLogits(self.policy.to(self.device))
        self._check_ranks_agree(logits)
        if job.logs is not None and distributed.rank() == 0:
            (job.logs / CHECKS).write_text(json.dumps(checks))
        self.observer = self._build_observer()
        self.source.begin(logits)
        engine = self._build_engine(logits)
        start = 0
        if job.resume_from:
            facts = load_state(engine, self.source, job.resume_from, job)
            start = facts.step
            if facts.parted_differently(job):
                self._log(start, {OTHER_RANKS: float(distributed.world_size())})
        self.alarm = self._build_alarm()
        self.best = None if config.best is None else Best(config.best, job.output)

        step = start
        while not self._ended(engine, step):
            self._step(engine, step)
            step += 1
            # The first rank's answer, so that all save their state and end at the same step.
            stops = distributed.gather(distributed.rank() == 0 and job.stop.exists())[0]
            if stops or config.checkpoints_after(step - 1):
                save_state(engine, self.source, step, job)
            if stops:
                return
        self._finish(engine, step)

    def _check_ranks_agree(self, logits: ResponseLogits) -> None:
        """All ranks must agree whether rows can be packed; otherwise all raise."""
        if len(set(distributed.gather(packing_width(logits)))) > 1:
            raise ConfigError(
                "model",
                type(causal_model(self.policy)).__name__,
                "ranks differ on whether its responses can share prompts, so their machines "
                "compute different numbers; train on machines of one kind",
            )

    def _ended(self, engine: Engine, step: int) -> bool:
        """Runs a probe if one is due; returns whether training ends after `step` updates."""
        if self.config.probes_at(step):
            self._probe(engine, step)
            # Only rank 0 decides, since the gap may round differently on other ranks.
            if self.alarm is not None and distributed.gather(self.alarm.stops)[0]:
                return True
        return step >= self.config.steps

    def _step(self, engine: Engine, step: int) -> None:
        """Runs one optimizer step on the source's examples."""
        config, began = self.config, time.perf_counter()
        drawn = self.source.draw(engine, step)
        values = dict(drawn.metrics)
        examples = [example for example in drawn.examples if example.id not in config.without]
        if examples:
            totals = count_step(drawn.examples, self.objective.sides)
            values |= self._learn(engine, step, examples, totals)
        values["train/examples_per_s"] = config.batch_size / (time.perf_counter() - began)
        self._log(step + 1, values)

    def _learn(
        self, engine: Engine, step: int, examples: Sequence[StepExample], totals: Totals
    ) -> dict[str, float]:
        """Updates the weights once; returns the step's metrics."""
        config = self.config
        recorded = (
            step in config.record_steps or config.observes(step) or self.job.all_steps is not None
        )
        before = (engine.master_weights(), engine.optimizer_state()) if recorded else None
        with activations_checkpointed(self.policy):
            accumulated = self.passes.accumulate(engine, step, examples, totals)
        self._check_finite("loss", accumulated.sums["train/loss"], examples)
        rate = learning_rate(config, step)
        norm = engine.step(rate)
        self._check_finite("gradient norm", norm, examples)
        seen: Mapping[str, float] = {}
        if before is not None:
            if self.designer is not None:
                examples = with_doses(examples, distributed.gather_dealt(accumulated.doses))
            seen = self._record(engine, step, rate, norm, examples, *before)
        metrics = {name: value / len(examples) for name, value in accumulated.sums.items()}
        metrics |= accumulated.quantiles
        metrics |= seen
        return metrics | {
            "train/loss": accumulated.sums["train/loss"],
            "train/grad_norm": norm,
            "train/learning_rate": rate,
        }

    def _check_finite(self, name: str, value: float, examples: Sequence[StepExample]) -> None:
        """Raises Diverged for a non-finite value, after writing the step's examples."""
        if math.isfinite(value):
            return
        if distributed.rank() == 0:
            write_rows((self.job.logs or self.job.output) / DIVERGED, self._recorded(examples))
        distributed.barrier()  # another rank's exit would kill rank 0 while it writes
        raise Diverged(name, value, [example.id for example in examples])

    def _probe(self, engine: Engine, step: int) -> None:
        """Scores every probe row, split over the ranks, and updates alarm and best."""
        if not self.probes:
            return
        began = time.perf_counter()
        if self.scorer is None:
            self.scorer = ProbeScorer(
                engine.logits,
                self.probes,
                self.encoder,
                batch_tokens=self.config.probe_batch_tokens,
                share=(distributed.rank(), distributed.world_size()),
                # Under ZeRO-3 every forward gathers weights from all ranks.
                in_step=self.config.engine.zero_stage == 3,
            )
        rows = list(chain.from_iterable(distributed.gather(self.scorer.score())))
        if distributed.rank() == 0:
            lines = (ProbeScore(step=step, **dict(row)).line() for row in rows)
            with (self.job.output / "probes.jsonl").open("a") as file:
                file.writelines(lines)
        means = mean_by_kind(rows)
        if self.alarm is not None:
            means |= self.alarm.update(step, means)
        if self.best is not None:
            self.best.update(engine, step, means)
        self._log(step, {**means, "probe/seconds": time.perf_counter() - began})

    def _record(
        self,
        engine: Engine,
        step: int,
        rate: float,
        norm: float,
        batch: Sequence[StepExample],
        before: dict[str, Tensor],
        state: dict[str, dict[str, Tensor]],
    ) -> Mapping[str, float]:
        """Records the step that has just run, for later and for the observer, as configured."""
        after, moments = engine.master_weights(), engine.second_moments()
        if distributed.rank() != 0:
            return {}
        for name, moment in moments.items():
            if self.master is not None:
                moment = at_least_rounding(moment)
            state.setdefault(name, {})[SECOND_MOMENT_AFTER] = moment.to("cpu", copy=True)
        facts = StepFacts(
            step=step,
            learning_rate=rate,
            grad_norm=norm,
            clip_factor=clip_factor(norm, self.config.clip_norm),
            clip_norm=self.config.clip_norm,
            rounded=self.master is not None,
            objective=self.config.objective,
            optimizer=self.config.optimizer,
        )
        record = StepRecord(facts, self._recorded(batch), before, after, state)
        if self.job.all_steps is not None:
            self._keep(record, self.job.all_steps)
        if step in self.config.record_steps:
            folder = self.job.output / "forces" / f"step-{step:08d}"
            record.save(folder)
            if self.job.record_cache is not None:
                RecordCache(self.job.record_cache).take(folder)
        return self.observer(record) if self.observer and self.config.observes(step) else {}

    def _keep(self, record: StepRecord, folder: Path) -> None:
        """Keeps a step for a ledger, which trains again where one is missing."""
        place, unfinished = folder / f"step-{record.facts.step:08d}", folder / "unfinished"
        try:
            for former in (unfinished, place):  # a run that went on from before this step
                shutil.rmtree(former, ignore_errors=True)
            record.save(unfinished)
            unfinished.rename(place)
        except (OSError, SafetensorError) as error:
            log.warning("step %d is not kept for the ledger: %s", record.facts.step, error)

    def _recorded(self, examples: Sequence[StepExample]) -> tuple[Recorded, ...]:
        sides, temperature = self.objective.sides, self.source.temperature
        return tuple(recorded(example, sides, temperature) for example in examples)

    def _log(self, step: int, values: dict[str, float]) -> None:
        if distributed.rank() != 0:
            return
        line = MetricsLine(
            step=step,
            examples=step * self.config.batch_size,
            time=time.time(),
            metrics=values,
        )
        with (self.job.output / "metrics.jsonl").open("a") as file:
            file.write(json_line(line))

    def _finish(self, engine: Engine, steps: int) -> None:
        """Saves model, tokenizer and summary after `steps` steps, for `from_pretrained`."""
        weights, output = engine.master_weights(), self.job.output
        best = None if self.best is None else self.best.probe
        if self.best is not None and best is not None and distributed.rank() == 0:
            weights = self.best.weights()
        if self.config.lora is not None:
            with engine.gathered():
                if distributed.rank() == 0:
                    save_merged(self.policy, weights, output)
        elif distributed.rank() == 0:
            self.policy.save_pretrained(
                output / "model", state_dict=weights, max_shard_size=FILE_BYTES
            )
        if distributed.rank() == 0:
            self.tokenizer.save_pretrained(output / "model")
            summary = TrainingSummary(
                steps=steps,
                objective=self.config.objective.name,
                rows=self.encoder.counts.as_metrics(),
                alarm=None if self.alarm is None else self.alarm.ring,
                best=best,
            )
            (output / "summary.json").write_text(summary.model_dump_json(indent=1))
            shutil.rmtree(output / FOLDER, ignore_errors=True)
        distributed.barrier()

    def _to_bf16(self) -> dict[str, Tensor]:
        """Rounds the policy to bf16; returns its fp32 weights.

        The reference is then scored in the arithmetic of the policy that is compared with it.
        """
        named = dict(self.policy.named_parameters())
        master = {n: p.detach().to("cpu", copy=True) for n, p in named.items() if p.requires_grad}
        for parameter in named.values():
            parameter.data = parameter.data.bfloat16()
        return master

    def _build_engine(self, logits: ResponseLogits) -> Engine:
        if self.config.engine.kind == "plain":
            return PlainEngine(logits, self.config, self.master)
        from dynolab.training.deepspeed_engine import DeepSpeedEngine

        return DeepSpeedEngine(logits, self.config, self.master)

    def _build_observer(self) -> StepObserver | None:
        """The observer of the ledger's steps, on rank 0."""
        build = self.build_observer
        if self.config.ledger is None or build is None or distributed.rank() != 0:
            return None
        frozen = [p for p in self.policy.parameters() if not p.requires_grad]
        shared = {id(p): torch.nn.Parameter(p.detach(), requires_grad=False) for p in frozen}
        model = copy.deepcopy(self.policy, shared)
        if self.master is not None:
            keep_frozen_narrow(model)
        return build(model, self.encoder, self.probes, self.job.output / "ledger.jsonl")

    def _build_alarm(self) -> Alarm | None:
        """Builds the alarm; when resuming, replays the metrics logged before."""
        config, log = self.config.alarm, self.job.output / "metrics.jsonl"
        if config is None:
            return None
        replays = self.job.resume_from is not None and distributed.rank() == 0
        history = list(read_rows(log, MetricsLine)) if replays else []
        return Alarm(config, distributed.gather(history)[0])

    def _build_source(self) -> Source:
        job, objective = self.job, self.objective
        if isinstance(job.config, GroupTrainConfig):
            prompts = load_prompts(job.examples, self.encoder, job.config.max_new_tokens)
            if job.config.designed_dose is not None:
                self.designer = DoseDesigner(job.config, ResponseLogits(self.policy), objective)
            return Online(
                prompts, objective, job.config, self.policy, self.encoder, pad_id=self.pad_id
            )
        rows = Examples(job.examples, self.encoder, job.config.objective)
        logits = ResponseLogits(self.policy)
        if job.config.designed_dose is not None:
            self.designer = DoseDesigner(job.config, logits, objective, rows, self.pad_id)
        elif job.config.chooses_dose:
            self.designer = Calibrator(logits, objective, rows, self.pad_id)
        return Offline(rows, objective, job, self.pad_id)
