"""What a training has left for the explorer: watched answers, ledger, recorded steps."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import RLock

import numpy as np
from pydantic import TypeAdapter

from dynolab.aside import write_aside, write_text_aside
from dynolab.data.encode import Encoded, EncodedExample, Encoder
from dynolab.data.rows import Example, ProbeRow, Row, json_lines, read_value
from dynolab.errors import ConfigError
from dynolab.explorer.kept import Background
from dynolab.explorer.lines import Lines
from dynolab.explorer.step import Asked, AskedStep, Metric, check_room, under, with_pair
from dynolab.explorer.watched import Answer, read_answers
from dynolab.forces.function.policy import PolicyFunction
from dynolab.objectives.registry import PAIR_OBJECTIVES, ObjectiveConfig
from dynolab.report.style import objective_name
from dynolab.results.ledger_reader import LedgerReader
from dynolab.results.study import TokenMap
from dynolab.training.step_batch import RecordedExample
from dynolab.training.step_record import RecordCache, StepRecord

AT_ONCE = 8  # answers; a click waits at most for so many
YIELD = 0.005  # seconds after them, in which a click that waits gets the lock

_OBJECTIVES: TypeAdapter[ObjectiveConfig] = TypeAdapter(ObjectiveConfig)

_LOST = (
    "its tensors are no longer in this machine's cache; what was computed before is still shown. "
    "To compute more, run the study again with --fresh"
)

STEPS = 5  # that are kept in memory

_LINES = "removal"
"""What a line is, in the names of kept files: those of another definition are not read."""

Score = Callable[[Sequence[EncodedExample]], list[RecordedExample]]


@dataclass
class Training:
    """One training of the study.

    - `result`: `<stage>/<key>`; `folder`: its files.
    - `load`: loads its policy and encoder; `score`: scores pairs by the reference.
    - `ledger`: the account of all its steps, if there is one.
    - `study`: the study's result, where it stands beside another's.
    - `records`: the cache of recorded steps' tensors; `cache`: folder where lines are kept.
    """

    name: str
    result: str
    objective: ObjectiveConfig
    folder: Path
    watched: Sequence[ProbeRow]
    load: Callable[[], tuple[PolicyFunction, Encoder]] = field(repr=False)
    score: Score = field(repr=False)
    ledger: LedgerReader | None
    records: RecordCache
    cache: Path
    study: str = ""
    lock: RLock = field(default_factory=RLock, repr=False)
    background: Background = field(default_factory=Background, repr=False)
    _steps: dict[tuple[object, ...], AskedStep] = field(default_factory=dict, repr=False)

    @property
    def stage(self) -> str:
        """The stage that trained it, without another study's name."""
        return self.name.partition(" ")[0]

    @property
    def label(self) -> str:
        """What the page calls it."""
        name = objective_name(self.objective.name)
        return f"{name} of {self.study}" if self.study else name

    @cached_property
    def answers(self) -> dict[str, list[Answer]]:
        """The watched answers of every kind, the one that fell most first."""
        on_pairs = self.objective.name in PAIR_OBJECTIVES
        return read_answers(self.folder / "probes.jsonl", self.watched, on_pairs=on_pairs)

    @cached_property
    def recorded_steps(self) -> tuple[int, ...]:
        """The 0-based steps that were recorded."""
        folders = sorted((self.folder / "forces").glob("step-*"))
        return tuple(int(folder.name[5:]) for folder in folders)

    @cached_property
    def _loaded(self) -> tuple[PolicyFunction, Encoder]:
        return self.load()

    def encoded(self, row: ProbeRow) -> Encoded:
        """An answer's tokens.

        **Raises:** `ConfigError` for one that does not fit the model's context.
        """
        with self.lock:
            encoder = self._loaded[1]
            sequence = encoder.probe(row)
        if sequence is None:
            limit = encoder.max_length
            raise ConfigError(
                "answer", row.pair_id, f"is longer than the model's context of {limit}"
            )
        return sequence

    def token_texts(self, sequence: Encoded) -> list[str]:
        """Tokens of a response as a person reads them."""
        from dynolab.data.token_texts import token_strings

        return token_strings(sequence, self._loaded[1].tokenizer)

    def asked_for(self, metric: Metric, name: str = "", beta: float | None = None) -> Asked:
        """The training's steps, or those of another objective, or of its own with another β.

        Its own objective keeps its other settings; another one has its defaults.
        """
        settings = (
            self.objective.model_dump() if name in ("", self.objective.name) else {"name": name}
        )
        objective = _OBJECTIVES.validate_python(settings)
        if beta is not None and "beta" in type(objective).model_fields:
            objective = _OBJECTIVES.validate_python({**settings, "beta": beta})
        return Asked(metric, None if objective == self.objective else objective)

    def known_lines(self, kind: str, *questions: Asked) -> tuple[Lines, ...] | None:
        """For each question the lines of the recorded steps that are computed for all of them.

        None before `begin`, now or earlier, has computed one.
        """
        steps = [
            step
            for step in self.recorded_steps
            if all(self._file(step, kind, question).exists() for question in questions)
        ]
        if not steps:
            return None
        return tuple(
            Lines.together([self.lines(step, kind, question) for step in steps])
            for question in questions
        )

    def lines_to(self, row: ProbeRow, steps: Sequence[int], question: Asked) -> Lines:
        """What the batches of some recorded steps did to one answer."""
        every = enumerate(self.answers.get(row.kind, ()))
        place = next((place for place, answer in every if answer.row == row), None)
        parts = []
        for step in steps:
            file = self._file(step, row.kind, question)
            if place is not None and file.exists():
                parts.append(Lines.load(file).to(place))
            else:
                parts.append(
                    self._lines(self._kept(".npz", step, question, row), [row], step, question)
                )
        return Lines.together(parts)

    def lines(self, step: int, kind: str, question: Asked) -> Lines:
        """What a recorded step's batch did to all answers of a kind, in the order of `answers`."""
        return self.lines_of(None, step, kind, question)

    def _lines(
        self,
        file: Path,
        rows: Sequence[ProbeRow],
        step: int,
        question: Asked,
        pair: Example | None = None,
    ) -> Lines:
        """What a step's batch did to some answers: computed once, then kept in the file."""
        if not file.exists():
            sequences = [self.encoded(row) for row in rows]
            chunks = []
            for start in range(0, len(sequences), AT_ONCE):
                with self.lock:
                    chunk = self.asked(step, question, pair).lines(
                        sequences[start : start + AT_ONCE]
                    )
                chunks.append(chunk)
                time.sleep(YIELD)
            write_aside(file, Lines.beside(chunks).save)
        return Lines.load(file)

    def begin(
        self, kind: str, question: Asked, steps: Sequence[int], pair: Example | None = None
    ) -> int:
        """Computes `lines` of recorded steps in the background, or `lines_of` a pair.

        **Returns:** how many of them are due. **Raises** what ended an earlier attempt.
        """
        due = [step for step in steps if not self._file(step, kind, question, pair).exists()]

        def compute() -> None:
            for step in due:
                self.lines_of(pair, step, kind, question)

        if due:
            self.background.begin((kind, question, pair and pair.id), compute)
        return len(due)

    def log_probs(self, row: ProbeRow, step: int) -> tuple[float, float]:
        """log π of an answer before and after a recorded step, in nats."""
        with self.lock:
            return self.asked(step, Asked()).log_probs(self.encoded(row))

    def token_pushes(self, row: ProbeRow, step: int, question: Asked) -> np.ndarray:
        """Push on every token of an answer, through chosen and through rejected responses."""
        with self.lock:
            return self.asked(step, question).on_tokens(self.encoded(row))

    def token_lines(self, row: ProbeRow, token: int, step: int, question: Asked) -> Lines:
        """What a recorded step's batch did to one token of an answer."""
        sequence = self.encoded(row)
        first = sequence.prompt_length + token
        with self.lock:
            return self.asked(step, question).lines([Encoded(sequence.ids[: first + 1], first)])

    def token_map(self, row: ProbeRow, pair: Example, step: int, question: Asked) -> TokenMap:
        """Which token of a pair pushes which token of an answer, at a recorded step.

        A pair that was not in the step's batch takes the place of one that was. Computed once; then
        it is kept in a file.
        """
        file = self._kept(".json", step, question, row, pair)
        if file.exists():
            return read_value(file, TokenMap)
        with self.lock:
            computed = self.asked(step, question, pair).token_map(
                pair.id,
                self.encoded(row),
                self._loaded[1].tokenizer,
                name=row.pair_id,
                kind=row.kind,
            )
        write_text_aside(file, computed.model_dump_json())
        return computed

    def lines_of(self, pair: Example | None, step: int, kind: str, question: Asked) -> Lines:
        """What a step's batch did to all answers of a kind, with a pair in it: its own, or in place
        of another one.
        """
        rows = [answer.row for answer in self.answers[kind]]
        return self._lines(self._file(step, kind, question, pair), rows, step, question, pair)

    @cached_property
    def batches(self) -> dict[int, list[str]]:
        """The pairs of every recorded step, by id."""
        ids = {}
        for step in self.recorded_steps:
            lines = json_lines(self._record_folder(step) / "batch.jsonl")
            ids[step] = [json.loads(line)["id"] for line in lines]
        return ids

    def record(self, step: int) -> StepRecord:
        """A recorded step.

        **Raises:** `ConfigError` where its tensors are no longer in this machine's cache.
        """
        record = self.records.load(self._record_folder(step))
        if record is None:
            raise ConfigError("step", step, _LOST)
        return record

    def _record_folder(self, step: int) -> Path:
        return self.folder / "forces" / f"step-{step:08d}"

    def computable(self) -> tuple[tuple[int, ...], ConfigError | None]:
        """The recorded steps that can be computed here, and why not all of them, or none."""
        if not self.recorded_steps:
            field = f"{self.stage}.record_steps"
            return (), ConfigError(
                field,
                [],
                "records no step, so that nothing beyond the ledger can be computed; set "
                f"{field}: [10, 20], or other steps, and run the study again",
            )
        here = tuple(
            step for step in self.recorded_steps if self.records.holds(self._record_folder(step))
        )
        if here:
            try:
                self.check_room()
            except ConfigError as error:
                return (), error
        lost = [step for step in self.recorded_steps if step not in here]
        return here, ConfigError("step", lost, _LOST) if lost else None

    def check_room(self) -> None:
        """Raises `ConfigError` where a recorded step's lines exceed the memory that is free.

        Steps that are kept in memory give way to it.
        """
        for step in self.recorded_steps[:1]:  # all have batches of one size
            record, device = self._record_folder(step), self._loaded[0].device
            with self.lock:
                try:
                    check_room(record, device)
                except ConfigError:
                    if not self._steps:
                        raise
                    self._steps.clear()
                    check_room(record, device)

    def asked(self, step: int, question: Asked, pair: Example | None = None) -> AskedStep:
        """The step that questions are put to; the newest few stay in memory."""
        question = self._in_batch(step, question)
        if pair is not None and pair.id in self.batches[step]:
            pair = None
        key = (step, question, None if pair is None else pair.id)
        with self.lock:
            if key not in self._steps:
                self.check_room()
                record = self.record(step)
                if pair is not None:
                    record = with_pair(record, self._scored(pair))
                if question.objective is not None:
                    record = under(record, question.objective)
                if question.metric == "gradient":
                    record = record.as_gradient_step()
                for old in list(self._steps)[: 1 - STEPS]:
                    del self._steps[old]
                self._steps[key] = AskedStep(record, self._loaded[0], question.without)
            return self._steps[key]

    def _scored(self, pair: Example) -> RecordedExample:
        encoded = self._loaded[1].example(pair)
        if encoded is None:
            raise ConfigError("pair", pair.id, "is longer than the model's context")
        return self.score([encoded])[0]

    def _in_batch(self, step: int, question: Asked) -> Asked:
        """The question about this step: without the pairs that are not in its batch."""
        present = [pair for pair in question.without if pair in self.batches[step]]
        return replace(question, without=tuple(present))

    def _file(self, step: int, kind: str, question: Asked, pair: Example | None = None) -> Path:
        rows: list[Row] = [answer.row for answer in self.answers.get(kind, ())]
        if pair is not None and pair.id not in self.batches[step]:
            rows.append(pair)
        return self._kept(".npz", step, question, *rows)

    def _kept(self, suffix: str, step: int, question: Asked, *rows: Row) -> Path:
        """The file that holds what was computed from these rows at a step."""
        question = self._in_batch(step, question)
        objective = "" if question.objective is None else question.objective.model_dump_json()
        parts = (_LINES, self.result, str(step), question.metric, objective, *question.without)
        text = "\0".join((*parts, *(row.model_dump_json() for row in rows)))
        return self.cache / f"{hashlib.sha256(text.encode()).hexdigest()}{suffix}"
