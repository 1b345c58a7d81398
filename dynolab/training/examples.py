"""The rows of a training: loaded and checked before ranks start, then drawn step by step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dynolab import distributed
from dynolab.data.batches import REJECTED, draw
from dynolab.data.encode import Encoded, EncodedExample, Encoder
from dynolab.data.rows import Example, PromptRow, read_rows, rows_with_lines
from dynolab.data.unknown import surely_known
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives import KTO, Objective, build_objective
from dynolab.objectives.pair_losses import reads_wins
from dynolab.objectives.registry import AnyConfig
from dynolab.objectives.sft import KTOConfig, SFTConfig
from dynolab.training.config import LoopConfig
from dynolab.training.engine import Engine
from dynolab.training.job import TrainJob
from dynolab.training.reference import SideLogps, cached_reference, score_responses, score_sides
from dynolab.training.step_batch import ScoredRow, StepExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def training_encoder(
    config: LoopConfig, tokenizer: PreTrainedTokenizerBase, context: int
) -> Encoder:
    """Encoder of a run's rows; `context` is the model's, in tokens."""
    return Encoder(tokenizer, min(config.max_length or context, context), config.overlong)


LONGEST_ROWS = 200
"""Of a file's longest rows, so many are encoded where others are once they are drawn."""


class Examples(Sequence[EncodedExample]):
    """Rows of a file that a training keeps, each read and encoded where it is first asked for.

    Memory grows with the rows that are asked for; others take 8 bytes each.

    **Arguments:** `encoder`: its counts are those of all rows; `objective`: what the rows are for.

    **Raises** `ConfigError` for rows that lack a field the objective reads, and if no row is left.
    Under `overlong: error` also for an overlong row: here where it is one of the longest, where it
    is asked for otherwise.
    """

    def __init__(self, file: Path, encoder: Encoder, objective: AnyConfig) -> None:
        self._file, self._of_sft = file, isinstance(objective, SFTConfig)
        self._encoder = Encoder(encoder.tokenizer, encoder.max_length, encoder.overlong)
        self._encoded: dict[int, EncodedExample] = {}
        self._places, self._sizes = array("q"), array("q")
        is_known, self._known = surely_known(encoder.tokenizer), True

        def rows() -> Iterator[Example]:
            for place, line, row in rows_with_lines(file, Example):
                if self._of_sft and row.label is False:  # of labelled rows the good ones alone
                    continue
                self._places.append(place)
                # A row has fewer tokens than its line has bytes, if no character becomes several.
                fits = len(line) <= encoder.max_length and line.isascii()
                self._sizes.append(0 if fits else len(line))
                answers = row.chosen + (row.rejected or "")
                self._known = self._known and is_known(answers)
                yield self._for_objective(row)

        check_rows(rows(), objective)
        self._keep(encoder)

    def _for_objective(self, row: Example) -> Example:
        return row.model_copy(update={"label": None}) if self._of_sft and row.label else row

    def _keep(self, encoder: Encoder) -> None:
        """Leaves out what the overlong rule drops, and counts as if all rows were encoded."""
        size, refuses = self._sizes.__getitem__, encoder.overlong == "error"
        longest = nlargest(LONGEST_ROWS, range(len(self._places)), size) if refuses else ()
        encoded, places = set(longest), array("q")
        for row, place in enumerate(self._places):
            if self._known and (row not in encoded if refuses else not size(row)):
                encoder.counts.kept += 1
            elif encoder.example(self._read(place)) is None:
                continue
            places.append(place)
        self._places, self._sizes = places, array("q")
        encoder.check_kept(len(places))

    def _read(self, place: int) -> Example:
        with self._file.open("rb") as file:
            file.seek(place)
            return self._for_objective(Example.model_validate_json(file.readline()))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[place] for place in range(len(self))[row]]
        if row not in self._encoded:
            example = self._encoder.example(self._read(self._places[row]))
            assert example is not None, "rows that are dropped are left out"
            self._encoded[row] = example
        return self._encoded[row]


def load_prompts(
    file: Path, encoder: Encoder, max_new_tokens: int
) -> list[tuple[PromptRow, tuple[int, ...]]]:
    """Loads and encodes the prompts of a file; keeps those that leave room for a completion.

    **Raises** `ConfigError` for overlong prompts under `overlong: error`, and if no prompt is left.
    """
    rows = list(read_rows(file, PromptRow))
    try:
        encoded = [
            (row, encoder.prompt(row.id, row.prompt, max_new_tokens, row.turn)) for row in rows
        ]
    except ConfigError as error:
        if error.field != "overlong":
            raise
        raise ConfigError(
            error.field,
            error.value,
            f"{error.remedy}, or lower max_new_tokens = {max_new_tokens}, the room kept for a "
            "completion",
        ) from error
    prompts = [(row, tokens) for row, tokens in encoded if tokens is not None]
    if not prompts:
        raise ConfigError(
            "data",
            f"0 of {len(rows)} prompts kept",
            "give prompts that leave room for max_new_tokens in the model's context, or set "
            "overlong: truncate_left",
        )
    return prompts


def check_rows(rows: Iterable[Example], objective: AnyConfig) -> None:
    """Raises ConfigError for rows that lack the rejected answer or `wins` the objective reads.

    Also where no row has anything to learn: all pairs of two equal answers, or no answer at all.
    """
    sides = build_objective(objective).sides
    soft = reads_wins(objective)
    labels = set[bool | None]()
    count, equal, empty, weightless = 0, True, True, True
    no_rejected, no_wins = list[str](), list[str]()
    for row in rows:
        count += 1
        labels.add(row.label)
        if row.rejected is None and REJECTED in sides:
            no_rejected.append(row.id)
        if row.wins is None and soft:
            no_wins.append(row.id)
        equal = equal and row.chosen == row.rejected
        empty = empty and not row.content(row.chosen).strip()
        weightless = weightless and row.weight == 0
    if isinstance(objective, KTOConfig):
        if labels != {True, False}:
            raise ConfigError(
                "data.label",
                next(iter(labels), None),
                f"objective {objective.name} needs rows with a label (data.format: unpaired), "
                "some true and some false",
            )
    elif labels - {None}:
        raise ConfigError(
            "data.format",
            "unpaired",
            f"objective {objective.name} compares two answers; give pairs, or use kto",
        )
    else:
        check_rejected(no_rejected, objective.name)
        if count and REJECTED in sides and equal:
            raise ConfigError(
                "data", f"{count} pairs", "each has two equal answers; give pairs that differ"
            )
    if count and empty:
        remedy = "no answer has text; give answers, or name their column in data.columns"
        raise ConfigError("data", f"{count} rows", remedy)
    if count and weightless:
        raise ConfigError("data.weight", 0.0, "of every row is 0; give some rows a weight above it")
    if no_wins:
        raise ConfigError(
            "data.wins",
            None,
            f"objective {objective.name} with labels: soft needs `wins` in every row, the "
            "probabilities that its two answers beat one of the policy's; "
            f"{len(no_wins)} rows have none, the first is {no_wins[0]}",
        )


def check_rejected(lacking: Sequence[str], objective: str) -> None:
    """Raises ConfigError for ids of rows without the rejected answer that an objective needs."""
    if lacking:
        raise ConfigError(
            "data.rejected",
            None,
            f"objective {objective} needs a rejected answer in every row; "
            f"{len(lacking)} rows have none, the first is {lacking[0]}; where another column holds "
            "them, data.columns gives it the name rejected (rejected_messages beside messages)",
        )


@dataclass(frozen=True)
class Drawn:
    """The examples of one optimizer step, and metrics of how they were made.

    If there are none, the step updates no weights.
    """

    examples: Sequence[StepExample]
    metrics: Mapping[str, float] = field(default_factory=dict)


class Source(Protocol):
    """Gives every step its examples, the same on every rank. All methods are collective."""

    @property
    def temperature(self) -> float:
        """Temperature at which groups are sampled and trained; 1 for rows."""

    def begin(self, logits: ResponseLogits) -> None:
        """Reads the full initial weights before the engine takes them."""

    def draw(self, engine: Engine, step: int) -> Drawn:
        """Returns the examples of 0-based `step`."""

    def save(self, step: int, folder: Path) -> None:
        """Writes the state, besides the weights, that the steps from `step` on need."""

    def load(self, step: int, folder: Path) -> None:
        """Reads what `save` wrote for the same step."""


def unrelated(examples: Sequence[EncodedExample]) -> list[Encoded]:
    """Each row's prompt with the answer of the row before it, cut to the longest row."""
    longest = max(len(example.chosen.ids) for example in examples)
    neighbours = []
    for example, other in zip(examples, [examples[-1], *examples[:-1]], strict=True):
        prompt = example.chosen.ids[: example.chosen.prompt_length]
        answer = other.chosen.ids[other.chosen.prompt_length :]
        room = max(1, longest - len(prompt))
        neighbours.append(Encoded(prompt + answer[:room], len(prompt)))
    return neighbours


class Offline:
    """Rows in seeded permutations (`draw`); the reference is scored once, at the beginning, on the
    rows that the training draws."""

    temperature = 1.0

    def __init__(
        self, examples: Sequence[EncodedExample], objective: Objective, job: TrainJob, pad_id: int
    ) -> None:
        self._examples, self._objective = examples, objective
        self._job, self._config = job, job.config
        self._pad_id = pad_id
        self._reference: dict[int, SideLogps] = {}
        self._policy: ResponseLogits | None = None
        self._unrelated: list[Encoded] = []
        self._before: list[float] = []

    def begin(self, logits: ResponseLogits) -> None:
        """Scores the reference, which is the initial policy."""
        if not self._objective.needs_reference:
            return
        if isinstance(self._objective, KTO) and self._objective.config.loss_type == "kto":
            self._policy, self._unrelated = logits, unrelated(self._examples)
            self._before = self._totals(range(len(self._examples)))
        sides, batch = self._objective.sides, self._config.micro_examples
        order = self._scoring_order()
        rows = sorted(set(order))
        examples = [self._examples[row] for row in rows]

        def score() -> list[SideLogps]:
            in_order = [self._examples[row] for row in order]
            scored = score_sides(logits, in_order, sides, self._pad_id, batch)
            # A step may draw from two passes over the rows: the first one counts.
            by_row = dict(zip(reversed(order), reversed(scored), strict=True))
            return [by_row[row] for row in rows]

        folder = self._job.reference_cache
        if folder is None:
            self._reference = dict(zip(rows, score(), strict=True))
            return
        mine = self._job.input_digests() if distributed.rank() == 0 else {}
        digests = distributed.gather(mine)[0]
        engine = self._config.engine
        arithmetic = {"batch": batch, "attention": engine.attention, "dtype": engine.dtype}
        made_by = {**digests, **arithmetic, "order": order}
        logps = cached_reference(folder, score, examples, sides, made_by)
        self._reference = dict(zip(rows, logps, strict=True))

    def draw(self, engine: Engine, step: int) -> Drawn:
        """Returns the step's rows, and for KTO how far the policy has drifted."""
        rows, drift = self._rows(step), None
        if self._policy is not None:
            with engine.gathered():
                now = self._totals(rows)
            gains = [after - self._before[row] for row, after in zip(rows, now, strict=True)]
            drift = max(0.0, sum(gains) / len(gains))
        examples = []
        for row in rows:
            logps = self._reference[row] if self._objective.needs_reference else {}
            examples.append(ScoredRow(self._examples[row], logps, drift=drift))
        return Drawn(examples, {} if drift is None else {"train/drift": drift})

    def _totals(self, rows: Sequence[int]) -> list[float]:
        """The policy's log-probability of the unrelated answers of some rows, in nats."""
        assert self._policy is not None
        sequences = [self._unrelated[row] for row in rows]
        scored = score_responses(self._policy, sequences, self._pad_id, self._config.micro_examples)
        return [float(logps.double().sum()) for logps in scored]

    def _rows(self, step: int) -> list[int]:
        return draw(step, self._config.batch_size, len(self._examples), self._config.seed)

    def _scoring_order(self) -> list[int]:
        """Rows in the order in which the reference is scored, each drawn one at least once.

        How products of a row round depends on the batch that it is in, and a training that is run
        again in part must have the same reference to the bit. So the batches are those of all rows,
        and those without a drawn row are left out.

        In bf16 it matters more. There, rows are scored in the micro-batches of the training's first
        pass over them, so that the policy's first log-probabilities are the reference's to the bit.
        """
        count, config = len(self._examples), self._config
        first_pass = math.ceil(count / config.batch_size)
        all_steps = self._job.whole_steps or config.steps
        if config.engine.dtype == "bf16":
            ranks = range(distributed.world_size())
            steps = range(min(first_pass, all_steps))
            return [r for s in steps for rank in ranks for r in self._rows(s)[rank :: len(ranks)]]
        # Of labelled rows, which have one answer each, a batch holds more.
        if all_steps >= first_pass or isinstance(self._objective, KTO):
            return list(range(count))
        size = config.micro_examples
        batches = {row // size for step in range(all_steps) for row in self._rows(step)}
        return [
            row
            for batch in sorted(batches)
            for row in range(batch * size, min((batch + 1) * size, count))
        ]

    def save(self, step: int, folder: Path) -> None:
        """No-op: the step number determines its rows."""

    def load(self, step: int, folder: Path) -> None:
        """No-op."""
