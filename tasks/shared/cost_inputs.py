"""A model and rows as a plan knows them before anything runs: by their settings."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dynolab.costs.batches import stand_in_rows
from dynolab.costs.shape import ModelShape, shape_of
from dynolab.data.encode import EncodedExample, Encoder
from dynolab.data.rows import Example
from dynolab.data.sources.load import DataConfig, LoadedData, load_data, load_prompts
from dynolab.probes.making.probe_set import PAIRS, ProbeSetConfig
from dynolab.training.config import LoopConfig, LoraConfig
from models.language import load_tokenizer
from models.tiny import TinyConfig, build_tiny
from models.unloaded import adapted, builder, read_config
from tasks.data import chat_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

MOST_ROWS, LONGEST_ROWS = 5_000, 200
"""Sizes of a sample of many rows, and of the longest rows that are read beside it."""

KINDS = 6
"""Kinds of probe answers that are made from pairs alone."""


def some_rows(rows: Sequence[Example]) -> list[Example]:
    """All rows, or of more than `MOST_ROWS` a sample of that size and the `LONGEST_ROWS` with the
    most characters: a context may be too short for these alone.
    """
    if len(rows) <= MOST_ROWS:
        return list(rows)
    drawn = set(random.Random(0).sample(range(len(rows)), MOST_ROWS))
    by_length = sorted(range(len(rows)), key=lambda place: _characters(rows[place]))
    return [rows[place] for place in sorted(drawn | set(by_length[-LONGEST_ROWS:]))]


def _characters(row: Example) -> int:
    return len(row.prompt) + max(len(row.chosen), len(row.rejected or ""))


@dataclass(frozen=True)
class Inputs:
    """A base model and rows, by their settings; both are read where they are at hand.

    Rows of the Hub are not fetched: those of a known data set stand in for them, or rows as long
    as the limit.
    """

    source: str
    """The base model: its folder, its name on the Hub, or `builtin`."""
    revision: str | None
    data: DataConfig
    watched: ProbeSetConfig | None = None
    """Which kinds of answers are watched; None: those in the rows."""
    read: LoadedData | None = None
    """The rows, if they have been read."""
    _shapes: dict[LoraConfig | None, ModelShape] = field(default_factory=dict, init=False)
    _encoded: dict[int, Sequence[EncodedExample]] = field(default_factory=dict, init=False)
    overlong: dict[int, int] = field(default_factory=dict, init=False)
    """Rows beyond each limit that `rows` was asked for, of those that it has."""

    @property
    def at_hand(self) -> bool:
        """Whether the rows are read, rather than stood in for."""
        return self.data.source != "hub" and self.tokenizer is not None

    @property
    def gives_prompts(self) -> bool:
        """Whether the rows are prompts without answers to compare."""
        return self.data.format in ("prompts", "gsm8k")

    @property
    def reads_file(self) -> bool:
        """Whether the rows are a file's, which needs nothing of the Hub to be read."""
        template = self.data.chat_model
        return self.data.source == "file" and (template is None or Path(template).is_dir())

    @cached_property
    def loaded(self) -> LoadedData:
        """The rows of a file or of the built-in world."""
        return self.read or load_data(self.data, chat_tokenizer(self.data))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's, unless it would have to be fetched."""

        if self.source == "builtin":
            assert self.loaded.world is not None, "the built-in model reads the built-in world"
            return self.loaded.world.tokenizer()
        folder = Path(self.source)
        return load_tokenizer(folder) if folder.is_dir() else None

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The model's configuration."""

        if self.source != "builtin":
            return read_config(self.source, self.revision)
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
        if self.watched is None:
            return len(self.loaded.probes) if self.at_hand else 2 * self.data.probe_pairs * KINDS
        pairs = self.watched.pairs or PAIRS
        rows = [pairs, pairs]  # of both splits
        if self.at_hand:
            rows = [min(pairs, len(split)) for split in (self.loaded.pairs, self.loaded.heldout)]
        return sum(rows) * len(self.watched.kinds)

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

    @property
    def pairs(self) -> int:
        """Training pairs that are at hand, of which `rows` has some; 0 where rows stand in."""
        return 0 if self.gives_prompts or not self.at_hand else len(self.loaded.pairs)

    def rows(self, limit: int) -> Sequence[EncodedExample]:
        """The training rows, or some of many (`some_rows`), none longer than the limit."""
        if limit not in self._encoded:
            self._encoded[limit] = self._read(limit)
        return self._encoded[limit]

    def _read(self, limit: int) -> Sequence[EncodedExample]:
        if not self.at_hand or self.tokenizer is None:
            return stand_in_rows(self.data.hub_name, self.data.rows or 1_000, limit)
        encoder = Encoder(self.tokenizer, limit, "truncate_left")
        if not self.gives_prompts:
            encoded = encoder.examples(some_rows(self.loaded.pairs))
            self.overlong[limit] = encoder.counts.truncated + encoder.counts.dropped
            return encoded
        prompts = load_prompts(self.data, chat_tokenizer(self.data)).train
        rows = [Example(id=row.id, prompt=row.prompt, chosen=row.answer or "?") for row in prompts]
        return encoder.examples(rows)
