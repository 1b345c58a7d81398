"""What a training has left for the explorer: watched answers, ledger, recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock, RLock
from typing import Literal

import numpy as np
from pydantic import TypeAdapter

from dynolab.data.encode import Encoded, EncodedExample, Encoder
from dynolab.data.rows import Example, ProbeRow, Row, Split, read_rows, read_value
from dynolab.errors import ConfigError
from dynolab.explorer.kept import file_of, write_whole
from dynolab.explorer.lines import Lines
from dynolab.explorer.room import check_room
from dynolab.explorer.step import Asked, AskedStep, Metric, as_gradient_step, under, with_pair
from dynolab.forces.function.policy import PolicyFunction
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.report.inputs.ledger import Ledger
from dynolab.report.style import objective_name
from dynolab.results.study import ProbeScore, TokenMap
from dynolab.training.record_cache import RecordCache
from dynolab.training.recorded_examples import RecordedExample
from dynolab.training.step_record import StepRecord

AT_ONCE = 24  # answers; a click waits at most for so many

_OBJECTIVES: TypeAdapter[ObjectiveConfig] = TypeAdapter(ObjectiveConfig)

STEPS = 5  # that are kept in memory

Score = Callable[[Sequence[EncodedExample]], list[RecordedExample]]


@dataclass(frozen=True)
class Answer:
    """A watched answer, and log π of it before and after the training, in nats."""

    row: ProbeRow
    start: float
    end: float

    @property
    def change(self) -> float:
        """Δ log π: negative where the answer fell."""
        return self.end - self.start


@dataclass
class Training:
    """One training of the study.

    - `result`: `<stage>/<key>`; `folder`: its files.
    - `load`: loads its policy and encoder; `score`: scores pairs by the reference.
    - `ledger`: the account of all its steps, if there is one.
    - `study`: the study's result, where it stands beside another's.
    - `records`: the cache of recorded steps' tensors; `kept`: folder where lines are kept.
    """

    name: str
    result: str
    objective: ObjectiveConfig
    folder: Path
    watched: Sequence[ProbeRow]
    load: Callable[[], tuple[PolicyFunction, Encoder]] = field(repr=False)
    score: Score = field(repr=False)
    ledger: Ledger | None
    records: RecordCache
    kept: Path
    study: str = ""
    lock: RLock = field(default_factory=RLock, repr=False)
    _begun: Lock = field(default_factory=Lock, repr=False)
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1), repr=False)
    _jobs: dict[tuple[str, Asked], Future[None]] = field(default_factory=dict, repr=False)
    _steps: dict[tuple[object, ...], AskedStep] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """What the page calls it."""
        name = objective_name(self.objective.name)
        return f"{name} of {self.study}" if self.study else name

    @cached_property
    def answers(self) -> dict[str, list[Answer]]:
        """The watched answers of every kind, the one that fell most first."""
        ends: dict[tuple[str, str], list[float]] = {}
        for score in read_rows(self.folder / "probes.jsonl", ProbeScore):
            path = ends.setdefault((score.pair_id, score.kind), [score.logp, score.logp])
            path[1] = score.logp
        kinds: dict[str, list[Answer]] = {}
        for row in self.watched:
            if known := ends.get((row.pair_id, row.kind)):
                kinds.setdefault(row.kind, []).append(Answer(row, *known))
        return {kind: sorted(own, key=lambda answer: answer.change) for kind, own in kinds.items()}

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
            sequence = encoder.response(row.pair_id, row.prompt, row.response)
        if sequence is None:
            limit = encoder.max_length
            raise ConfigError(
                "answer", row.pair_id, f"is longer than the model's context of {limit}"
            )
        return sequence

    def token_texts(self, sequence: Encoded) -> list[str]:
        """Tokens of a response as a person reads them."""
        from dynolab.forces.step.token_map import token_strings

        return token_strings(sequence, self._loaded[1].tokenizer)

    def asked_for(self, metric: Metric, name: str = "", beta: float | None = None) -> Asked:
        """The training's steps, or with a name those of another objective.

        Its own name keeps its settings, except β; another objective has its defaults.
        """
        if not name:
            return Asked(metric)
        own = self.objective.model_dump() if name == self.objective.name else {"name": name}
        objective = _OBJECTIVES.validate_python(own)
        if beta is not None and "beta" in type(objective).model_fields:
            objective = _OBJECTIVES.validate_python({**own, "beta": beta})
        return Asked(metric, objective)

    def all_known(self, kind: str, asked: Asked) -> Lines | None:
        """The lines of all recorded steps, None until `begin` has computed them."""
        parts = [self._known(step, kind, asked) for step in self.recorded_steps]
        known = [part for part in parts if part is not None]
        return Lines.together(known) if known and len(known) == len(parts) else None

    def lines_to(self, row: ProbeRow, steps: Sequence[int], asked: Asked) -> Lines:
        """What the batches of some recorded steps did to one answer."""
        place = self._place(row)
        parts = []
        for step in steps:
            known = self._known(step, row.kind, asked)
            if known is not None and place is not None:
                parts.append(known.to(place))
            else:
                parts.append(self._lines_to_one(row, step, asked))
        return Lines.together(parts)

    def _lines_to_one(self, row: ProbeRow, step: int, asked: Asked) -> Lines:
        file = self._kept(".npz", step, asked, row)
        if file.exists():
            return Lines.load(file)
        with self.lock:
            lines = self.asked(step, asked).lines([self.encoded(row)])
        write_whole(file, lines.save)
        return lines

    def lines(self, step: int, kind: str, asked: Asked) -> Lines:
        """What a recorded step's batch did to all answers of a kind, in the order of `answers`.

        Computed once; then it is kept in a file.
        """
        known = self._known(step, kind, asked)
        if known is not None:
            return known
        sequences = [self.encoded(answer.row) for answer in self.answers[kind]]
        chunks = []
        for start in range(0, len(sequences), AT_ONCE):
            with self.lock:
                chunk = self.asked(step, asked).lines(sequences[start : start + AT_ONCE])
            chunks.append(chunk)
        lines = Lines.beside(chunks)
        write_whole(self._file(step, kind, asked), lines.save)
        return lines

    def begin(self, kind: str, asked: Asked) -> int:
        """Computes `lines` of all recorded steps in the background.

        **Returns:** how many steps are done. **Raises** what ended an earlier attempt.
        """
        steps = self.recorded_steps
        due = [step for step in steps if not self._file(step, kind, asked).exists()]
        with self._begun:
            job = self._jobs.get((kind, asked))
            if job is not None and job.done() and (error := job.exception()) is not None:
                del self._jobs[kind, asked]
                raise error
            if due and (job is None or job.done()):
                self._jobs[kind, asked] = self._worker.submit(self._all, due, kind, asked)
        return len(steps) - len(due)

    def _all(self, steps: Sequence[int], kind: str, asked: Asked) -> None:
        for step in steps:
            self.lines(step, kind, asked)

    def token_pushes(self, row: ProbeRow, step: int, asked: Asked) -> np.ndarray:
        """Push on every token of an answer, through chosen and through rejected responses."""
        with self.lock:
            return self.asked(step, asked).on_tokens(self.encoded(row))

    def token_lines(self, row: ProbeRow, token: int, step: int, asked: Asked) -> Lines:
        """What a recorded step's batch did to one token of an answer."""
        whole = self.encoded(row)
        first = whole.prompt_length + token
        with self.lock:
            return self.asked(step, asked).lines([Encoded(whole.ids[: first + 1], first)])

    def token_map(self, row: ProbeRow, pair: Example, step: int, asked: Asked) -> TokenMap:
        """Which token of a pair pushes which token of an answer, at a recorded step.

        A pair that was not in the step's batch takes the place of one that was. Computed once; then
        it is kept in a file.
        """
        file = self._kept(".json", step, asked, row, pair)
        if file.exists():
            return read_value(file, TokenMap)
        with self.lock:
            computed = self.asked(step, asked, pair).token_map(
                pair.id,
                self.encoded(row),
                self._loaded[1].tokenizer,
                name=row.pair_id,
                kind=row.kind,
            )
        write_whole(file, lambda part: part.write_text(computed.model_dump_json()))
        return computed

    def lines_of(self, pair: Example, step: int, kind: str, asked: Asked) -> Lines:
        """What a pair does to all answers of a kind, in its batch or in place of another one."""
        record = self.record(step)
        if any(example.id == pair.id for example in record.examples):
            return self.lines(step, kind, asked)
        sequences = [self.encoded(answer.row) for answer in self.answers[kind]]
        with self.lock:
            return self.asked(step, asked, pair).lines(sequences)

    def record(self, step: int) -> StepRecord:
        """A recorded step.

        **Raises:** `ConfigError` where its tensors are no longer in this machine's cache.
        """
        record = self.records.load(self._record_folder(step))
        if record is None:
            remedy = "its tensors are no longer in this machine's cache; run the study's forces "
            raise ConfigError("step", step, remedy + "again: dynolab study FILE --fresh")
        return record

    def _record_folder(self, step: int) -> Path:
        return self.folder / "forces" / f"step-{step:08d}"

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

    def asked(self, step: int, asked: Asked, pair: Example | None = None) -> AskedStep:
        """The step that questions are put to; the newest few stay in memory."""
        key = (step, asked, None if pair is None else pair.id)
        with self.lock:
            if key not in self._steps:
                self.check_room()
                record = self.record(step)
                if pair is not None and all(pair.id != e.id for e in record.examples):
                    record = with_pair(record, self._scored(pair))
                if asked.objective is not None:
                    record = under(record, asked.objective)
                if asked.metric == "gradient":
                    record = as_gradient_step(record)
                for old in list(self._steps)[: 1 - STEPS]:
                    del self._steps[old]
                self._steps[key] = AskedStep(record, self._loaded[0])
            return self._steps[key]

    def _scored(self, pair: Example) -> RecordedExample:
        encoded = self._loaded[1].example(pair)
        if encoded is None:
            raise ConfigError("pair", pair.id, "is longer than the model's context")
        return self.score([encoded])[0]

    def _place(self, row: ProbeRow) -> int | None:
        for place, answer in enumerate(self.answers.get(row.kind, ())):
            if answer.row == row:
                return place
        return None

    def _known(self, step: int, kind: str, asked: Asked) -> Lines | None:
        file = self._file(step, kind, asked)
        return Lines.load(file) if file.exists() else None

    def _file(self, step: int, kind: str, asked: Asked) -> Path:
        rows = (answer.row for answer in self.answers.get(kind, ()))
        return self._kept(".npz", step, asked, *rows)

    def _kept(self, suffix: str, step: int, asked: Asked, *rows: Row) -> Path:
        return file_of(self.kept, suffix, self.result, step, asked, *rows)


def split_of(answers: Sequence[Answer], split: Split | Literal["all"]) -> list[Answer]:
    """The answers of a split, in their order."""
    return [answer for answer in answers if split in ("all", answer.row.split)]
