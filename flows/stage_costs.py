"""What every stage of a plan takes, from its settings, a model's sizes and lengths of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dynolab.costs.analyses import (
    audit_bytes,
    forces_bytes,
    kernel_bytes,
    ledger_bytes,
    squeezing_bytes,
)
from dynolab.costs.batches import Lengths, joined, lengths_of, positions_of, training_batches
from dynolab.costs.disk import model_bytes, page_bytes, record_bytes, training_disk
from dynolab.costs.machines import Machine
from dynolab.costs.memory import FP32, training_bytes
from dynolab.costs.operations import Positions, forward_flops, gradient_flops
from dynolab.costs.stage import StageCost, hours_of
from dynolab.costs.timed import MOST_PARAMETERS, model_speed
from dynolab.costs.traced import Activations, MicroBatch, activation_bytes
from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.encode import EncodedExample
from dynolab.data.sources.load import DataConfig
from dynolab.objectives import build_objective
from dynolab.probes.making.probe_set import ProbeSetConfig
from dynolab.squeezing.ladder import EXAMPLES, POSITIONS
from dynolab.training.config import GroupTrainConfig, LoopConfig
from flows.planned_inputs import Inputs
from tasks.base import BaseConfig
from tasks.runtime.pipeline import Step
from tasks.step_forces import MAP_TOKENS

PAIR = (CHOSEN, REJECTED)
CHANGE = 3
"""Forwards that an answer's change along a direction takes: itself, and two products for one."""

TIMED = 4
"""Pairs in the batch that is timed."""

DIRECTIONS = 6
"""Parts of a step along which answers change: of both sides, momentum, decay, and their sums."""


class PlannedCosts:
    """Costs of a plan's steps on a machine."""

    def __init__(self, steps: Sequence[Step], machine: Machine) -> None:
        self._by_name = {step.name: step for step in steps}
        self.machine = machine
        self._known: dict[tuple[str, str], Costs] = {}
        configs = (step.config for step in steps)
        self._watched = next((each for each in configs if isinstance(each, ProbeSetConfig)), None)

    def of(self, step: Step) -> StageCost | None:
        """What a step takes; None where no formula is written down.

        **Raises:** `ConfigError` for a model or rows that cannot be read.
        """
        base, data = (_root(step, self._by_name, kind) for kind in (BaseConfig, DataConfig))
        if base is None or data is None:
            return None
        key = base.model_dump_json(), data.model_dump_json()
        costs = self._known.setdefault(key, Costs(Inputs(base, data, self._watched), self.machine))
        return costs.of(step, self._by_name)


def _root(step: Step, by_name: Mapping[str, Step], kind: type[Any]) -> Any:
    """The settings of a kind that a step begins with: its own, or of what it reads."""
    if isinstance(step.config, kind):
        return step.config
    for name in step.inputs.values():
        if name in by_name and (found := _root(by_name[name], by_name, kind)) is not None:
            return found
    if kind is DataConfig:  # an imported model reads no rows
        return next((s.config for s in by_name.values() if isinstance(s.config, kind)), None)
    return None


class Costs:
    """Costs of stages that start from one base model and read one set of rows."""

    def __init__(self, inputs: Inputs, machine: Machine) -> None:
        self.inputs, self._host = inputs, machine
        self._traced: dict[tuple[Any, ...], Activations] = {}

    @cached_property
    def machine(self) -> Machine:
        """The machine, with this model's own speed where it is small and trains on CPUs."""
        shape = self.inputs.shape()
        if not self._times_model:
            return self._host
        rows = [self._row(row, PAIR) for row in self._rows()[:TIMED]]
        speed = model_speed(self.inputs.model(), shape, joined(rows))
        return replace(self._host, fp32=speed, bf16=speed)

    @property
    def _times_model(self) -> bool:
        return not self._host.gpus and self.inputs.shape().parameters <= MOST_PARAMETERS

    def of(self, step: Step, by_name: Mapping[str, Step]) -> StageCost | None:
        """What a step takes; None where no formula is written down."""
        config: Any = step.config
        if isinstance(config, LoopConfig):
            return self.training(config)
        match step.stage.name:
            case "base":
                return self._base(config)
            case "audit":
                return self._audit(config)
            case "probe":
                return self._probe(config, sum(n != "data" for n in step.inputs))
            case "forces":
                return self._forces(config, by_name[step.inputs["trained"]].config)
            case "ledger":
                return self.ledger(config)
            case "squeezing":
                return self._squeezing(
                    config, [by_name[step.inputs[n]].config for n in config.trainings]
                )
            case "kernel":
                return self._kernel(config)
            case "report":
                return StageCost(written=page_bytes(), stored=page_bytes(), basis="e")
        return None

    def training(self, config: LoopConfig, rows: Sequence[Lengths] = ()) -> StageCost:
        """A training on rows or on groups; by default on the data's."""
        shape, ranks = self.inputs.shape(config), config.engine.ranks
        lengths = rows or self._lengths(config)
        total, largest = training_batches(config, lengths)
        activations = self._activations(config, largest)
        memory = training_bytes(config, shape, activations, gpus=self.machine.gpus)
        checkpoint = config.engine.checkpoint_activations
        probes = sum(config.probes_at(step) for step in range(config.steps + 1))
        passes = self._answers(self.inputs.probe_rows * probes)
        if build_objective(config.objective).needs_reference:
            passes += sum((positions_of(joined([each])) for each in lengths), Positions())
        if isinstance(config, GroupTrainConfig):
            passes += total  # sampling reads every position once
        flops = gradient_flops(shape, total, checkpoint=checkpoint) + forward_flops(shape, passes)
        disk = training_disk(
            config, shape, probe_rows=self.inputs.probe_rows, tokenizer=self.inputs.tokenizer_bytes
        )
        starts = config.steps * config.accumulation * shape.layers
        return replace(
            self._cost("ace", total + passes, flops, config.engine.dtype, ranks, starts),
            rank_bytes=memory.rank,
            host_bytes=memory.host,
            written=disk.written,
            stored=disk.stored,
        )

    def ledger(self, config: Any) -> StageCost:
        """The account of a training, which runs it twice: as a whole, and again in segments.

        At a step it takes gradients of watched answers and of the batch's, scores single answers
        and the batch for the papers' measures, and splits one response a single answer into
        tokens. A token map takes another run, and what `_forces` says of one.
        """
        training, shape = config.training, self.inputs.shape()
        again = self.training(
            training.model_copy(update={"probe_every": 0, "record_steps": (training.steps - 1,)})
        )
        responses = training.batch_size * getattr(training, "completions", 2)
        kinds, singles = self.inputs.functionals, config.answers + config.heldout_answers
        entered = -(-training.steps // config.every)
        gradients = (kinds * config.pairs + singles) * (1 if config.every == 1 else 2)
        slopes = self._answers(entered * (gradients + responses))
        scored = self._answers(entered * (singles + responses))
        split = self._answers(entered * singles)
        flops = gradient_flops(shape, slopes) + forward_flops(shape, scored)
        mapped = self._answers(MAP_TOKENS if config.token_map else 0)
        flops += CHANGE * forward_flops(shape, split + mapped) + gradient_flops(shape, mapped)
        cost = self._cost("bd", slopes + scored + split + mapped * 2, flops)
        runs = 3 if config.token_map else 2
        machine = self.machine
        taken = ledger_bytes(
            shape,
            training.optimizer,
            functionals=kinds + singles,
            responses=responses,
            whole=config.every == 1,
            memory=machine.device_bytes if machine.gpus else machine.host_bytes,
        )
        ranks = again.rank_bytes * (1 if machine.gpus else again.ranks)
        return replace(
            cost,
            flops=cost.flops + runs * again.flops,
            hours=cost.hours + runs * again.hours,
            rank_bytes=max(taken.work, taken.between + ranks),
            host_bytes=again.host_bytes,
            written=entered * (record_bytes(training, shape, 1) + taken.waiting),
        )

    def _base(self, config: BaseConfig) -> StageCost:
        shape = self.inputs.shape()
        size = model_bytes(shape) + self.inputs.tokenizer_bytes
        if config.source != "builtin":
            return replace(
                self._cost("e", Positions(), 0), host_bytes=size, written=size, stored=size
            )
        return self.training(
            config.training, [self._row(row, (CHOSEN,)) for row in self.inputs.corpus]
        )

    def _audit(self, config: Any) -> StageCost:
        """Gradients of both answers and again of the chosen one, and three changes."""
        shape, data = self.inputs.shape(), self.inputs.data
        held = data.heldout_rows if config.heldout_pairs is None else config.heldout_pairs
        pairs = (config.pairs or len(self._rows())) + (held or 0)
        gradients, changes = self._answers(3 * pairs), self._answers(3 * pairs)
        flops = gradient_flops(shape, gradients) + CHANGE * forward_flops(shape, changes)
        cost = self._cost("bd", gradients + changes, flops)
        return replace(cost, rank_bytes=audit_bytes(shape))

    def _probe(self, config: Any, models: int) -> StageCost:
        """Every row scored by every model; generated answers are few beside them."""
        shape, positions = self.inputs.shape(), self._answers(self.inputs.probe_rows * models)
        cost = self._cost("bd", positions, forward_flops(shape, positions))
        return replace(cost, rank_bytes=model_bytes(shape))

    def _forces(self, config: Any, training: Any) -> StageCost:
        """Every watched answer's change along the parts of every recorded step; and a map, which
        takes a gradient and a change for each token of an example."""
        shape, steps = self.inputs.shape(), len(training.record_steps)
        changes = self._answers(steps * config.pairs * self.inputs.functionals * DIRECTIONS)
        mapped = self._answers(steps * MAP_TOKENS if config.pairs else 0)
        flops = CHANGE * forward_flops(shape, changes + mapped) + gradient_flops(shape, mapped)
        cost = self._cost("bd", changes + mapped * 2, flops)
        memory = forces_bytes(shape, training.optimizer)
        if self.machine.gpus:
            return replace(cost, rank_bytes=memory.device, host_bytes=memory.host)
        return replace(cost, rank_bytes=memory.together)

    def _squeezing(self, config: Any, trainings: Sequence[Any]) -> StageCost:
        """Answers of both kinds and splits at every recorded step and at the end, by two models; a
        step's batch four times; and a gradient with a change for each position of its ladder."""
        shape = self.inputs.shape()
        steps = sum(len(training.record_steps) for training in trainings)
        batches = sum(len(each.record_steps) * each.batch_size * 2 for each in trainings)
        scored = self._answers(8 * config.pairs * (steps + len(trainings)) + 4 * batches)
        rungs = self._answers(steps * EXAMPLES * POSITIONS * len(PAIR))
        flops = forward_flops(shape, scored) + gradient_flops(shape, rungs)
        cost = self._cost("bd", scored + rungs * 2, flops + CHANGE * forward_flops(shape, rungs))
        memory = max(squeezing_bytes(shape, training.optimizer) for training in trainings)
        return replace(cost, rank_bytes=memory)

    def _kernel(self, config: Any) -> StageCost:
        """Vectors back through an updating answer, two forwards each, and along answers."""
        shape, vectors = self.inputs.shape(), config.rank + config.probes
        observed = 2 * config.observed_pairs * len(config.kinds)
        updating = len(config.labels) * config.updating_pairs
        back = self._answers(updating * (4 * config.rank + 2 * vectors))
        along = self._answers(updating * (4 * config.rank + 2 * vectors * observed))
        flops = 2 * forward_flops(shape, back) + CHANGE * forward_flops(shape, along)
        longest = max(row.chosen.response_length for row in self._rows())
        images = 4 * vectors * longest * shape.vocabulary * FP32
        memory = kernel_bytes(shape, max(config.memory_bytes, images))
        return replace(self._cost("bd", back + along, flops), rank_bytes=memory)

    def _cost(
        self,
        basis: str,
        over: Positions,
        flops: int,
        dtype: str = "fp32",
        ranks: int = 1,
        starts: int = 0,
    ) -> StageCost:
        hours = hours_of(flops, self.machine, ranks=ranks, dtype=dtype, starts=starts)
        own = "ij" if self.machine.gpus else "k" if self._times_model else "h"
        return StageCost(
            parameters=self.inputs.shape().parameters,
            tokens=over.padded,
            flops=flops,
            ranks=ranks,
            hours=hours,
            basis=basis + self.inputs.basis + own,
        )

    def _activations(self, config: LoopConfig, batch: MicroBatch) -> Activations:
        import torch

        engine = config.engine
        key = batch, engine.dtype, engine.attention, engine.checkpoint_activations, config.lora
        if key not in self._traced:
            self._traced[key] = activation_bytes(
                self.inputs.model(config),
                self.inputs.shape().layers,
                batch,
                dtype=torch.bfloat16 if engine.dtype == "bf16" else torch.float32,
                products=self.machine.gpus and engine.reproducible,
                checkpoint=engine.checkpoint_activations,
            )
        return self._traced[key]

    def _lengths(self, config: LoopConfig) -> list[Lengths]:
        rows = self._rows(config.max_length)
        different = {id(row): row for row in rows}.values()  # stand-ins repeat
        if isinstance(config, GroupTrainConfig):
            context = self.inputs.shape().context
            known = {id(row): _group(row, config, context) for row in different}
        else:
            sides = build_objective(config.objective).sides
            known = {id(row): self._row(row, sides) for row in different}
        return [known[id(row)] for row in rows]

    def _row(self, row: EncodedExample, sides: Sequence[int]) -> Lengths:
        return lengths_of(row, sides, self.inputs.shape().width)

    def _rows(self, longest: int | None = None) -> Sequence[EncodedExample]:
        context = self.inputs.shape().context
        return self.inputs.rows(min(longest or context, context))

    def _answers(self, count: float) -> Positions:
        """What forwards of so many single answers run over, if they are as long as chosen ones."""
        return self._answer * count

    @cached_property
    def _answer(self) -> Positions:
        some = self._rows()[:200]
        over = (positions_of(joined([self._row(row, (CHOSEN,))])) for row in some)
        return sum(over, Positions()) * (1 / len(some))


def _group(row: EncodedExample, config: GroupTrainConfig, context: int) -> Lengths:
    """A prompt with completions as long as they may be, each in a row of its own."""
    longest = config.max_new_tokens
    row_length = min(row.chosen.prompt_length, context - longest) + longest
    count = config.completions
    return Lengths((row_length,) * count, count, count * longest)
