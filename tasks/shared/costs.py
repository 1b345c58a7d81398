"""What a stage takes: memory by formulas, time by one pass times the passes.

Each stage estimates itself, by what `Costs` offers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from dynolab.costs.batches import Lengths, joined, lengths_of, training_batches
from dynolab.costs.communication import sent_bytes
from dynolab.costs.machines import Machine, StageCost
from dynolab.costs.memory import (
    FP32,
    bytes_of,
    recorded_states,
    states,
    training_bytes,
)
from dynolab.costs.traced import Activations, MicroBatch, activation_bytes, seconds_together
from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.encode import EncodedExample
from dynolab.forces.function.policy import CPU_TOKENS, gpu_tokens
from dynolab.likelihood.streamed import WIDENED
from dynolab.objectives import build_objective
from dynolab.training.config import GroupTrainConfig, LoopConfig

if TYPE_CHECKING:
    from tasks.shared.cost_inputs import Inputs


Reads = Mapping[str, Any]
"""The configs of the steps that a stage reads, by its inputs."""

PAIR = (CHOSEN, REJECTED)
TIMED = 4
"""Pairs in the batch that is timed."""
MOVED = 10**10
"""Bytes a second from main memory to a GPU or back: an assumption, of memory that is not pinned."""
MOST_PARAMETERS = 2 * 10**8
"""Larger models are not built for a plan; their products take nearly all of the time."""


@dataclass(frozen=True)
class AnalysisCopies:
    """Copies of the weights in fp32 that an analysis holds.

    - `host`: without a GPU, beside optimizer states and activations.
    - `gpu`: on a GPU that has room for them; None: it runs on CPUs. If there is no room, all are in
      main memory, and weights come to the GPU module by module.
    - `beside_gpu`: in main memory beside those, and beside optimizer states.
    - `fetched`: tensors of the largest weight's size on a GPU to which weights come module by
      module: the weight, its gradient, or what is multiplied with it. Checked:
      `streamed_plan_error` of `tests.benchmarks.sharded`.
    """

    host: int
    gpu: int | None = None
    beside_gpu: int = 0
    fetched: int = 0


class Costs:
    """Costs of stages that start from one base model and read one set of rows."""

    def __init__(self, inputs: Inputs, machine: Machine) -> None:
        self.inputs, self.machine = inputs, machine
        self._traced: dict[tuple[Any, ...], Activations] = {}
        self._timed: dict[int, float] = {}

    def training(
        self, config: LoopConfig, rows: Sequence[Lengths] = (), *, again: bool = False
    ) -> StageCost:
        """A training on rows or on groups; by default on the data's.

        **Arguments:** `again`: with the reference's scores of rows from the cache.
        """
        shape, engine = self.inputs.shape(config), config.engine
        grouped = isinstance(config, GroupTrainConfig)
        lengths = rows or self._lengths(config)
        tokens, largest = training_batches(config, lengths)
        activations = self._activation_bytes(
            config,
            largest,
            dtype=torch.bfloat16 if engine.dtype == "bf16" else torch.float32,
            products=self.machine.gpus and engine.reproducible,
            checkpoint=engine.checkpoint_activations,
        )
        memory = training_bytes(config, shape, activations, gpus=self.machine.gpus)
        watched = self.inputs.probe_rows * self.answer
        forwards = config.probes * watched
        if build_objective(config.objective).needs_reference and (grouped or not again):
            batches = (joined([row]) for row in lengths)
            scored = sum(batch.length * batch.rows for batch in batches)
            # Only the rows that the training draws; completions are new at every step.
            count = len(rows) or max(len(lengths), self.inputs.pairs)
            drawn = config.steps * config.batch_size
            forwards += scored * (drawn if grouped else min(count, drawn)) // len(lengths)
        if grouped:
            forwards += tokens  # sampling reads every position once
        passes = tokens * (4 if engine.checkpoint_activations else 3) // 3 + forwards // 3
        copy, tensors = FP32 * shape.trained, states(config.optimizer)
        saved = (config.steps - 1) // config.checkpoint_every if config.checkpoint_every else 0
        records = sum(
            2 + recorded_states(config.optimizer) - (0 if step else tensors)
            for step in config.record_steps
        )
        cost = self.passes(passes, engine.dtype, engine.ranks)
        a_probe = math.ceil(watched / engine.ranks / config.probe_batch_tokens)
        sent = sent_bytes(config, shape, config.probes * a_probe)
        sending_hours = self.machine.sending_seconds(sent, engine.ranks) / 3600
        model = FP32 * shape.parameters
        return replace(
            cost,
            rank_bytes=memory.rank,
            host_bytes=memory.host,
            read=model,
            # Results and states are written here, and then into the store.
            written=2 * model + copy * (records + 2 * saved * (1 + tensors)),
            hours=cost.hours + sending_hours,
            sending_hours=sending_hours,
        )

    def analysis(
        self,
        answers: float,
        copies: AnalysisCopies,
        *,
        batch_tokens: int | None = None,
        training: LoopConfig | None = None,
        states: int = 0,
        records: int = 0,
        beside: int = 0,
        backward: bool = True,
    ) -> StageCost:
        """An analysis of trained models.

        **Arguments**

        - `answers`: that go forward and backward, counted as often as they do.
        - `batch_tokens`: of one batch; default: what forces take on this machine.
        - `training`: the one whose recorded steps are analysed, if one's are.
        - `states`: tensors of the optimizer's that are copied with the weights.
        - `records`: recorded steps that are read, with these tensors.
        - `beside`: further bytes of main memory.
        - `backward`: whether answers go backward, too.
        """
        batch = self.batch_tokens(batch_tokens)
        frozen, copy = self.weights(training, batch)
        in_main_memory = (copies.host + states) * copy
        cost = self.passes(round(answers * self.answer))
        loaded = FP32 * cost.parameters
        cost = replace(cost, read=loaded + records * (2 + states) * copy)
        if copies.gpu is None or not self.machine.gpus:
            return replace(cost, rank_bytes=max(frozen + in_main_memory, loaded) + beside)
        on_gpu = frozen + copies.gpu * copy
        if on_gpu > self.machine.device_bytes:
            host = max(in_main_memory, loaded)
            return self.streamed(cost, training, batch, copies.fetched, host, backward=backward)
        host = max((copies.beside_gpu + states) * copy, loaded) if copies.beside_gpu else 0
        return replace(cost, rank_bytes=on_gpu, host_bytes=host)

    @staticmethod
    def trainings(reads: Reads) -> list[LoopConfig]:
        """The trainings whose results a stage reads, by its inputs' configs."""
        return [config for config in reads.values() if isinstance(config, LoopConfig)]

    def recorded(self, reads: Reads) -> tuple[int, int]:
        """Recorded steps of these trainings, and most tensors of an optimizer in a record."""
        trainings = self.trainings(reads)
        states = [recorded_states(training.optimizer) for training in trainings]
        return sum(len(training.record_steps) for training in trainings), max(states, default=0)

    def batch_tokens(self, tokens: int | None) -> int:
        """Tokens of a batch as they are set, or as many as forces take on this machine."""
        shape = self.inputs.shape()
        default = gpu_tokens(shape.layers, shape.width) if self.machine.gpus else CPU_TOKENS
        return tokens or default

    def weights(self, training: LoopConfig | None, batch_tokens: int) -> tuple[int, int]:
        """Bytes that an analysis takes beside copies of what moves, and bytes of such a copy.

        All weights move, and their copies outweigh the rest, unless a training moved adapters
        alone. Beside these there are the frozen weights, what of them is widened at once in bf16,
        and the activations of a batch in fp32.
        """
        if training is None or training.lora is None:
            return 0, FP32 * self.inputs.shape().parameters
        shape, w = self.inputs.shape(training), bytes_of(training)
        widened = FP32 * min(shape.largest, WIDENED) if w < FP32 else 0
        frozen = w * (shape.parameters - shape.trained) + widened
        return frozen + self.activations(training, batch_tokens), FP32 * shape.trained

    def streamed(
        self,
        cost: StageCost,
        training: LoopConfig | None,
        batch_tokens: int,
        fetched: int,
        host: int,
        *,
        backward: bool = True,
    ) -> StageCost:
        """An analysis to whose GPU weights come module by module, as it has no room for copies.

        **Arguments:** `fetched`: tensors of the largest weight's size that are there at once;
        `host`: bytes of all copies.
        """
        # A weight goes there for each pass; the gradients of what moves come back.
        weight_bytes = 3 * FP32
        if training is not None and training.lora is not None:
            weight_bytes = 2 * bytes_of(training)
        moved = weight_bytes * cost.parameters * cost.tokens // batch_tokens
        return replace(
            cost,
            rank_bytes=self.activations(training, batch_tokens, backward=backward)
            + fetched * FP32 * self.inputs.shape(training).largest,
            host_bytes=host,
            hours=cost.hours + moved / MOVED / 3600,
        )

    def activations(
        self, training: LoopConfig | None, batch_tokens: int, *, backward: bool = True
    ) -> int:
        """Bytes of the activations of an analysis' largest batch, in fp32.

        Answers are in rows of their own; those of a pair are in one batch where a step is read.
        """
        longest = None if training is None else training.max_length
        answers = [self.lengths(row, (CHOSEN,)) for row in self.rows(longest)]
        tokens = [sum(answer.rows) for answer in answers]
        at_once = 1 if training is None else 2
        # As many as a batch has of average length, or the longest alone.
        count = at_once * max(1, batch_tokens // (at_once * self.answer))
        responses = math.ceil(count * sum(answer.responses for answer in answers) / len(answers))
        longest_answer = max(range(len(answers)), key=tokens.__getitem__)
        batch = max(
            MicroBatch(count, sum(tokens) // len(answers), responses),
            MicroBatch(
                at_once, tokens[longest_answer], at_once * answers[longest_answer].responses
            ),
            key=lambda batch: batch.rows * batch.length,
        )
        return self._activation_bytes(
            training, batch, products=self.machine.gpus and backward, backward=backward
        ).most

    def _activation_bytes(
        self, config: LoopConfig | None, batch: MicroBatch, **options: Any
    ) -> Activations:
        """`activation_bytes` of the model with a training's adapters, traced once."""
        model = None if config is None else (config.engine.attention, config.lora)
        key = model, batch, *options.items()
        if key not in self._traced:
            self._traced[key] = activation_bytes(
                self.inputs.model(config), self.inputs.shape().layers, batch, **options
            )
        return self._traced[key]

    def passes(self, tokens: int, dtype: str = "fp32", ranks: int = 1) -> StageCost:
        """Tokens that go forward and backward, by the seconds of one."""
        parameters = self.inputs.shape().parameters
        seconds, together = self._token_seconds(ranks), 1
        if seconds is None:
            seconds = self.machine.token_seconds(parameters, dtype)
            together = ranks if self.machine.gpus else 1  # on CPUs, ranks share the cores
        hours = tokens * seconds / together / 3600
        return StageCost(parameters=parameters, tokens=tokens, ranks=ranks, hours=hours)

    def _token_seconds(self, ranks: int) -> float | None:
        """Of one token of this model on all ranks, timed, where it is small and trains on CPUs."""
        shape = self.inputs.shape()
        if self.machine.gpus or shape.parameters > MOST_PARAMETERS:
            return None
        if ranks not in self._timed:
            batch = joined([self.lengths(row, PAIR) for row in self.rows()[:TIMED]])
            build = self.inputs.model()
            models = [build(shape.layers, torch.float32).eval() for _ in range(ranks)]
            seconds = seconds_together(models, batch)
            self._timed[ranks] = seconds / (ranks * batch.rows * batch.length)
        return self._timed[ranks]

    @cached_property
    def answer(self) -> int:
        """Tokens of an answer with its prompt, as long as chosen ones."""
        answers = [self.lengths(row, (CHOSEN,)) for row in self.rows()[:200]]
        return sum(sum(answer.rows) for answer in answers) // len(answers)

    def _lengths(self, config: LoopConfig) -> list[Lengths]:
        rows = self.rows(config.max_length)
        different = {id(row): row for row in rows}.values()  # stand-ins repeat
        if isinstance(config, GroupTrainConfig):
            context = self.inputs.shape().context
            lengths = {id(row): _group(row, config, context) for row in different}
        else:
            sides = build_objective(config.objective).sides
            lengths = {id(row): self.lengths(row, sides) for row in different}
        return [lengths[id(row)] for row in rows]

    def lengths(self, row: EncodedExample, sides: Sequence[int]) -> Lengths:
        """The rows of an example's answers in a batch."""
        if row.rejected is None:  # one will be sampled, as long as the chosen one perhaps
            row = replace(row, rejected=row.chosen)
        return lengths_of(row, sides, self.inputs.shape().width)

    def rows(self, longest: int | None = None) -> Sequence[EncodedExample]:
        """The training rows, none longer than a setting or the context."""
        return self.inputs.rows(self.limit(longest))

    def limit(self, longest: int | None) -> int:
        """Tokens of the longest row that a setting and the context allow."""
        context = self.inputs.shape().context
        return min(longest or context, context)


def _group(row: EncodedExample, config: GroupTrainConfig, context: int) -> Lengths:
    """A prompt with completions as long as they may be, each in a row of its own."""
    longest = config.max_new_tokens
    row_length = min(row.chosen.prompt_length, context - longest) + longest
    count = config.completions
    return Lengths((row_length,) * count, count, count * longest)
