"""What every stage of a plan takes: memory by formulas, time by one pass times the passes.

Before anything runs, a plan knows the study's model and rows by their settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dynolab.costs.batches import Lengths, joined, lengths_of, stand_in_rows, training_batches
from dynolab.costs.machines import Machine, StageCost
from dynolab.costs.memory import (
    COPIES,
    FETCHED,
    FP32,
    GPU_COPIES,
    bytes_of,
    ledger_copies,
    recorded_states,
    states,
    training_bytes,
)
from dynolab.costs.shape import ModelShape, shape_of
from dynolab.costs.traced import Activations, MicroBatch, activation_bytes, seconds_of
from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.encode import EncodedExample, Encoder
from dynolab.data.rows import Example
from dynolab.data.sources.config import rows_line
from dynolab.data.sources.load import DataConfig, LoadedData, load_data, load_prompts
from dynolab.errors import ConfigError
from dynolab.forces.function.policy import CPU_TOKENS, gpu_tokens
from dynolab.likelihood.streamed import WIDENED
from dynolab.objectives import build_objective
from dynolab.probes.making.probe_set import ProbeSetConfig
from dynolab.training.config import GroupTrainConfig, LoopConfig, LoraConfig, TrainConfig
from dynolab.training.examples import check_rows
from flows.flow import Step
from models.language import load_tokenizer
from models.tiny import TinyConfig, build_tiny
from models.unloaded import adapted, builder, read_config
from tasks.audit import AuditConfig
from tasks.base import BaseConfig
from tasks.data import chat_tokenizer
from tasks.probe import ProbeConfig
from tasks.training import check_probes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

KINDS = 6
"""Kinds of probe answers that are made from pairs alone."""


@dataclass(frozen=True)
class Inputs:
    """A base model and rows, by their settings; both are read where they are at hand.

    Rows of the Hub are not fetched: those of a known data set stand in for them, or rows as long
    as the limit.
    """

    base: BaseConfig
    data: DataConfig
    watched: ProbeSetConfig | None = None
    """Which kinds of answers are watched; None: those in the rows."""
    _shapes: dict[LoraConfig | None, ModelShape] = field(default_factory=dict, init=False)
    _encoded: dict[int, Sequence[EncodedExample]] = field(default_factory=dict, init=False)
    overlong: dict[int, int] = field(default_factory=dict, init=False)
    """Rows beyond each limit that `rows` was asked for."""

    @property
    def at_hand(self) -> bool:
        """Whether the rows are read, rather than stood in for."""
        return self.data.source != "hub" and self.tokenizer is not None

    @property
    def reads_file(self) -> bool:
        """Whether the rows are a file's, which needs nothing of the Hub to be read."""
        template = self.data.chat_model
        return self.data.source == "file" and (template is None or Path(template).is_dir())

    @cached_property
    def loaded(self) -> LoadedData:
        """The rows of a file or of the built-in world."""
        return load_data(self.data, chat_tokenizer(self.data))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's, unless it would have to be fetched."""

        if self.base.source == "builtin":
            assert self.loaded.world is not None, "the built-in model reads the built-in world"
            return self.loaded.world.tokenizer()
        folder = Path(self.base.source)
        return load_tokenizer(folder) if folder.is_dir() else None

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The model's configuration."""

        if self.base.source != "builtin":
            return read_config(self.base.source, self.base.revision)
        assert self.tokenizer is not None, "the built-in model has a tokenizer"
        return build_tiny(TinyConfig(), self.tokenizer).config

    def model(self, config: LoopConfig | None = None) -> Callable[[int, torch.dtype], Any]:
        """A function that makes the model with so many layers on the current device, with the
        adapters that a training adds."""

        attention = "sdpa" if config is None else config.engine.attention
        build, lora = builder(self.config, attention), None if config is None else config.lora
        return build if lora is None else adapted(build, lora)

    def shape(self, config: LoopConfig | None = None) -> ModelShape:
        """The model's sizes, adapters among them."""
        lora = None if config is None else config.lora
        if lora not in self._shapes:
            layers = self.config.get_text_config().num_hidden_layers
            with torch.device("meta"):
                self._shapes[lora] = shape_of(self.model(config)(layers, torch.float32))
        return self._shapes[lora]

    @cached_property
    def corpus(self) -> Sequence[EncodedExample]:
        """The rows that the built-in model is trained on."""
        if self.loaded.world is None or self.tokenizer is None:
            return ()
        limit = self.shape().context
        return Encoder(self.tokenizer, limit, "truncate_left").examples(self.loaded.world.corpus)

    @cached_property
    def probe_rows(self) -> int:
        """Answers that are watched."""
        if not self.at_hand:
            return self.data.probe_pairs * 2 * len(self._kinds)
        return sum(self._is_watched(row.kind) for row in self.loaded.probes)

    @property
    def _kinds(self) -> Sequence[object]:
        """Kinds of the watched answers where rows are not at hand."""
        return self.watched.kinds if self.watched is not None else range(KINDS)

    def _is_watched(self, kind: str) -> bool:
        return self.watched is None or kind in self.watched.kinds

    @cached_property
    def functionals(self) -> int:
        """Kinds of answers of both splits; the policy's own likeliest tokens are one more."""
        if not self.at_hand:
            return 2 * (len(self._kinds) + 1)
        kinds = {(row.split, row.kind) for row in self.loaded.probes if self._is_watched(row.kind)}
        return len(kinds) + len({split for split, _ in kinds})

    def rows(self, limit: int) -> Sequence[EncodedExample]:
        """The training rows, none longer than the limit."""
        if limit not in self._encoded:
            self._encoded[limit] = self._read(limit)
        return self._encoded[limit]

    def _read(self, limit: int) -> Sequence[EncodedExample]:
        if not self.at_hand or self.tokenizer is None:
            return stand_in_rows(self.data.hub_name, self.data.rows or 1_000, limit)
        encoder = Encoder(self.tokenizer, limit, "truncate_left")
        if self.data.format not in PROMPTS:
            encoded = encoder.examples(self.loaded.pairs)
            self.overlong[limit] = encoder.counts.truncated + encoder.counts.dropped
            return encoded
        prompts = load_prompts(self.data, chat_tokenizer(self.data)).train
        rows = [Example(id=row.id, prompt=row.prompt, chosen=row.answer or "?") for row in prompts]
        return encoder.examples(rows)


PROMPTS = ("prompts", "gsm8k")
"""Formats of prompts without answers to compare."""

PAIR = (CHOSEN, REJECTED)
TIMED = 4
"""Pairs in the batch that is timed."""
MOVED = 10**10
"""Bytes a second from main memory to a GPU or back: an assumption, of memory that is not pinned."""
MOST_PARAMETERS = 2 * 10**8
"""Larger models are not built for a plan; their products take nearly all of the time."""


class PlannedCosts:
    """Costs of a plan's steps on a machine."""

    def __init__(self, steps: Sequence[Step], machine: Machine) -> None:
        self._by_name = {step.name: step for step in steps}
        self.machine = machine
        self._known: dict[tuple[str, str], Costs] = {}
        configs = (step.config for step in steps)
        self._watched = next((each for each in configs if isinstance(each, ProbeSetConfig)), None)

    def of(self, step: Step) -> StageCost | None:
        """What a step takes; None where that is not estimated.

        **Raises:** `ConfigError` for a model or rows that cannot be read.
        """
        base, data = (_root(step, self._by_name, kind) for kind in (BaseConfig, DataConfig))
        if base is None or data is None:
            return None
        key = base.model_dump_json(), data.model_dump_json()
        costs = self._known.setdefault(key, Costs(Inputs(base, data, self._watched), self.machine))
        return costs.of(step, self._by_name)

    @property
    def read(self) -> list[str]:
        """What was read of files, as `rows_line` says it."""
        sources = [costs.inputs for costs in self._known.values()]
        return [rows_line(inputs.loaded.all_counts) for inputs in sources if inputs.reads_file]


def _root(step: Step, by_name: Mapping[str, Step], kind: type[Any]) -> Any:
    """The config of type `kind` that a step or one of its inputs has."""
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
        self.inputs, self.machine = inputs, machine
        self._traced: dict[tuple[Any, ...], Activations] = {}

    def of(self, step: Step, by_name: Mapping[str, Step]) -> StageCost | None:
        """What a step takes; None where that is not estimated."""
        config: Any = step.config
        if isinstance(config, LoopConfig):
            source = by_name.get(step.inputs.get("data", ""))
            if source and isinstance(source.config, DataConfig):
                self._check_rows(config)
            return self.training(config)
        if step.stage.name == "base":
            return self._base(config)
        if step.stage.name == "ledger":
            return self.ledger(config)
        if step.stage.name not in COPIES:
            return None
        reads = {
            role: by_name[name].config for role, name in step.inputs.items() if name in by_name
        }
        trainings = [each for each in reads.values() if isinstance(each, LoopConfig)]
        return self.analysis(step.stage.name, config, trainings, reads.get("trained"))

    def training(self, config: LoopConfig, rows: Sequence[Lengths] = ()) -> StageCost:
        """A training on rows or on groups; by default on the data's."""
        shape, engine = self.inputs.shape(config), config.engine
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
        scored = config.probes * self.inputs.probe_rows
        forwards = scored * self._answer
        if build_objective(config.objective).needs_reference:
            forwards += sum(each.length * each.rows for each in (joined([row]) for row in lengths))
        if isinstance(config, GroupTrainConfig):
            forwards += tokens  # sampling reads every position once
        passes = tokens * (4 if engine.checkpoint_activations else 3) // 3 + forwards // 3
        whole, kept = FP32 * shape.trained, states(config.optimizer)
        saved = (config.steps - 1) // config.checkpoint_every if config.checkpoint_every else 0
        records = sum(
            2 + recorded_states(config.optimizer) - (0 if step else kept)
            for step in config.record_steps
        )
        return replace(
            self._cost(passes, engine.dtype, engine.ranks),
            rank_bytes=memory.rank,
            host_bytes=memory.host,
            written=FP32 * shape.parameters + whole * (records + 2 * saved * (1 + kept)),
        )

    def _base(self, config: BaseConfig) -> StageCost:
        size = FP32 * self.inputs.shape().parameters
        if config.source != "builtin":
            return replace(self._cost(0), host_bytes=size, written=size)
        rows = [self._row(row, (CHOSEN,)) for row in self.inputs.corpus]
        return self.training(config.training, rows)

    def ledger(self, config: Any) -> StageCost:
        """A training that runs twice more; at each of its steps, gradients of observed answers and
        of the batch. Memory is what it cannot do without: one functional at a time."""
        training = config.training
        frozen, copy = self._weights(training, config)
        again = self.training(training.model_copy(update={"probe_every": 0}))
        responses = training.batch_size * getattr(training, "completions", 2)
        singles = config.answers + config.heldout_answers
        answers = self.inputs.functionals * config.pairs + 4 * singles + 2 * responses
        entered = -(-training.steps // config.every)
        cost = self._cost(entered * answers * self._answer)
        whole = config.every == 1
        held = 1 + ledger_copies(
            training.optimizer, functionals=1, responses=responses, every_step=whole
        )
        cost = replace(cost, rank_bytes=frozen + held * copy)
        if self.machine.gpus:
            cost = replace(
                cost,
                rank_bytes=frozen + (GPU_COPIES["ledger"] + (not whole)) * copy,
                host_bytes=(responses + 4 + 2 * recorded_states(training.optimizer)) * copy,
            )
            if cost.rank_bytes > self.machine.device_bytes:
                rows = min(responses, max(1, self._batch_tokens(config) // self._answer))
                count = FETCHED["ledger"] + (rows if training.lora is None else 0)
                cost = self._fetching(cost, training, config, largest=count, host=held * copy)
        return replace(
            cost,
            hours=cost.hours + 2 * again.hours,
            rank_bytes=max(cost.rank_bytes, again.rank_bytes),
            host_bytes=max(cost.host_bytes, again.host_bytes),
            written=entered * copy * (2 + recorded_states(training.optimizer)),
        )

    def analysis(
        self, name: str, config: Any, trainings: Sequence[LoopConfig], trained: Any = None
    ) -> StageCost:
        """An analysis of trained models: its answers, as many passes for each as it makes.

        **Arguments:** `trained`: the training whose recorded steps are analysed, if one's are.
        """
        recorded = sum(len(training.record_steps) for training in trainings)
        answers = {
            "probe": lambda: self.inputs.probe_rows * len(trainings) / 3,
            "audit": lambda: 6 * (config.pairs or len(self._rows())),
            "forces": lambda: 2 * recorded * config.pairs * self.inputs.functionals,
            "squeezing": lambda: 32 * recorded * config.pairs,
            "kernel": lambda: config.updating_pairs * config.rank * (4 + 4 * config.observed_pairs),
        }[name]()
        own = trained if name == "forces" else None
        frozen, copy = self._weights(own, config)
        kept = max((recorded_states(each.optimizer) for each in trainings), default=0)
        held = COPIES[name] + (kept if name in ("forces", "squeezing") else 0)
        cost = self._cost(round(answers * self._answer))
        loaded = FP32 * cost.parameters
        if name not in GPU_COPIES or not self.machine.gpus:
            memory = max(frozen + held * copy, loaded) + getattr(config, "memory_bytes", 0)
            return replace(cost, rank_bytes=memory)
        on_gpu = frozen + GPU_COPIES[name] * copy
        if on_gpu > self.machine.device_bytes:
            return self._fetching(
                cost,
                own,
                config,
                largest=FETCHED[name],
                host=max(held * copy, loaded),
            )
        host = max((11 + kept) * copy, loaded) if name == "forces" else 0
        return replace(cost, rank_bytes=on_gpu, host_bytes=host)

    def _weights(self, training: LoopConfig | None, config: Any) -> tuple[int, int]:
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
        return frozen + self._activations(training, config), FP32 * shape.trained

    def _fetching(
        self,
        cost: StageCost,
        training: LoopConfig | None,
        config: Any,
        *,
        largest: int,
        host: int,
    ) -> StageCost:
        """An analysis to whose GPU weights come module by module, as it has no room for copies.

        **Arguments:** `largest`: tensors of the largest weight's size that are there at once;
        `host`: bytes of all copies.
        """
        # Forth for each pass; the gradients of what moves come back.
        each = 3 * FP32
        if training is not None and training.lora is not None:
            each = 2 * bytes_of(training)
        moved = each * cost.parameters * cost.tokens // self._batch_tokens(config)
        tensors = largest * FP32 * self.inputs.shape(training).largest
        return replace(
            cost,
            rank_bytes=self._activations(training, config) + tensors,
            host_bytes=host,
            hours=cost.hours + moved / MOVED / 3600,
        )

    def _batch_tokens(self, config: Any) -> int:
        """Of an analysis' forwards with a backward; an audit has them answer by answer."""
        if isinstance(config, AuditConfig):
            return self._answer

        shape = self.inputs.shape()
        default = gpu_tokens(shape.layers, shape.width) if self.machine.gpus else CPU_TOKENS
        return config.batch_tokens or default

    def _activations(self, training: LoopConfig | None, config: Any) -> int:
        """Bytes of the activations of an analysis' largest batch, in fp32.

        Answers are in rows of their own; those of a pair are in one batch where a step is read.
        """
        tokens = self._batch_tokens(config)
        longest = None if training is None else training.max_length
        each = [self._row(row, (CHOSEN,)) for row in self._rows(longest)]
        lengths, least = [sum(row.rows) for row in each], 1 if training is None else 2
        rows = least * max(1, tokens // (least * self._answer))
        responses = math.ceil(rows * sum(row.responses for row in each) / len(each))
        alone = max(range(len(each)), key=lengths.__getitem__)
        batch = max(
            MicroBatch(rows, sum(lengths) // len(each), responses),
            MicroBatch(least, lengths[alone], least * each[alone].responses),
            key=lambda batch: batch.rows * batch.length,
        )
        scores = isinstance(config, ProbeConfig)
        return self._activation_bytes(
            training,
            batch,
            products=self.machine.gpus and not scores,
            backward=not scores,
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

    def _cost(self, tokens: int, dtype: str = "fp32", ranks: int = 1) -> StageCost:
        """Tokens that go forward and backward, by the seconds of one."""
        parameters = self.inputs.shape().parameters
        seconds = self._token_seconds or self.machine.token_seconds(parameters, dtype)
        together = ranks if self.machine.gpus else 1  # on CPUs, ranks share the cores
        hours = tokens * seconds / together / 3600
        return StageCost(parameters=parameters, tokens=tokens, ranks=ranks, hours=hours)

    @cached_property
    def _token_seconds(self) -> float | None:
        """Of one token of this model, timed, where it is small and trains on CPUs."""
        shape = self.inputs.shape()
        if self.machine.gpus or shape.parameters > MOST_PARAMETERS:
            return None

        batch = joined([self._row(row, PAIR) for row in self._rows()[:TIMED]])
        model = self.inputs.model()(shape.layers, torch.float32).eval()
        return seconds_of(model, batch) / (batch.rows * batch.length)

    @cached_property
    def _answer(self) -> int:
        """Tokens of an answer with its prompt, as long as chosen ones."""
        some = [self._row(row, (CHOSEN,)) for row in self._rows()[:200]]
        return sum(sum(each.rows) for each in some) // len(some)

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

    def _check_rows(self, config: LoopConfig) -> None:
        """Raises `ConfigError` for rows at hand that a training on them would refuse."""
        if not self.inputs.at_hand:
            return
        check_probes(config, self.inputs.loaded.probes)
        if self.inputs.data.format in PROMPTS or not isinstance(config, TrainConfig):
            return
        check_rows(self.inputs.loaded.pairs, config.objective)
        rows, limit = self._rows(config.max_length), self._limit(config.max_length)
        beyond = self.inputs.overlong[limit]
        if beyond and config.overlong == "error":
            raise ConfigError(
                "overlong",
                "error",
                f"{beyond} of {len(rows)} rows exceed the context of {limit} tokens; set it to "
                "drop, truncate_left, keep_start or keep_end, or use a model with a longer context",
            )

    def _row(self, row: EncodedExample, sides: Sequence[int]) -> Lengths:
        if row.rejected is None:  # one will be sampled, as long as the chosen one perhaps
            row = replace(row, rejected=row.chosen)
        return lengths_of(row, sides, self.inputs.shape().width)

    def _rows(self, longest: int | None = None) -> Sequence[EncodedExample]:
        return self.inputs.rows(self._limit(longest))

    def _limit(self, longest: int | None) -> int:
        context = self.inputs.shape().context
        return min(longest or context, context)


def _group(row: EncodedExample, config: GroupTrainConfig, context: int) -> Lengths:
    """A prompt with completions as long as they may be, each in a row of its own."""
    longest = config.max_new_tokens
    row_length = min(row.chosen.prompt_length, context - longest) + longest
    count = config.completions
    return Lengths((row_length,) * count, count, count * longest)
