"""A ledger's entries as tables (`dynolab.results.ledger`), and as lines while a training runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from dynolab import distributed
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.entries import SIDES, StepAccount
from dynolab.forces.ledger.watched import training_means
from dynolab.results.ledger import (
    PER_STEP,
    TABLES,
    Account,
    LedgerSummary,
    StepLine,
    account_of,
    read_arrays,
    read_table,
    write_table,
)
from dynolab.results.ledger_reader import Responses
from dynolab.training.config import InRunLedgerConfig
from dynolab.training.step_record import StepRecord


class HardestPull(NamedTuple):
    """What lowered a functional most: an example, at a step."""

    functional: str
    example: str
    step: int


class LedgerTables:
    """Collects entries, the last step first.

    **Arguments:** `names`: of the functionals; `read_token`: a token's text by its id;
    `every_step`, `every`, `lines`: `whole`, `every` and `lines` of `LedgerSummary`.
    """

    def __init__(
        self,
        names: Sequence[str],
        read_token: Callable[[int], str] = str,
        *,
        every_step: bool = True,
        every: int = 1,
        lines: Literal["removal", "shares"] = "removal",
    ) -> None:
        self.lines = lines
        self.names, self._read_token = list(names), read_token
        self._every_step, self._every = every_step, every
        self._tables: dict[str, dict[str, list[object]]] = {
            name: {column: [] for column in columns} for name, columns in TABLES.items()
        }

    @property
    def entered(self) -> int:
        """How many steps' entries there are."""
        return len(set(self._tables["steps"]["step"]))

    def add(self, entries: StepAccount, weight: int = 1) -> None:
        """Appends the entries of a step that stands for `weight` steps."""
        count = len(entries.responses)
        self._append(
            "steps",
            step=[entries.step] * len(self.names),
            functional=self.names,
            weight=[weight] * len(self.names),
            **{column: getattr(entries, column).tolist() for column in PER_STEP},
        )
        self._append(
            "responses",
            step=[entries.step] * count,
            response=list(range(count)),
            example=[response.id for response in entries.responses],
            side=[response.side for response in entries.responses],
            tokens=[list(response.tokens) for response in entries.responses],
        )
        self._append(
            "lines",
            step=[entries.step] * entries.lines.numel(),
            # Response by response, as the matrix is flattened: 0 0 1 1 …, q r q r ….
            response=np.repeat(range(count), len(self.names)).tolist(),
            functional=self.names * count,
            nats=entries.lines.flatten().tolist(),
        )
        for block, sums in entries.blocks.items():
            self._append(
                "blocks",
                step=[entries.step] * sums.numel(),
                block=[block] * sums.numel(),
                # Functional by functional, as the sums' columns are sides.
                functional=np.repeat(self.names, len(SIDES)).tolist(),
                side=[*SIDES] * len(self.names),
                nats=sums.flatten().tolist(),
            )
        for split in entries.tokens:
            length = len(split.nats)
            self._append(
                "tokens",
                step=[entries.step] * length,
                response=[split.response] * length,
                functional=[self.names[split.functional]] * length,
                place=list(range(length)),
                token=[*map(self._read_token, entries.responses[split.response].tokens)],
                nats=split.nats.tolist(),
            )
        for measures in entries.sources:
            self._append("sources", **{name: [value] for name, value in vars(measures).items()})

    def _append(self, table: str, **columns: Sequence[object]) -> None:
        for name, values in columns.items():
            self._tables[table][name] += values

    @property
    def columns(self) -> dict[str, dict[str, list[object]]]:
        """The columns of each table."""
        return self._tables

    def append(self, tables: Mapping[str, Mapping[str, Sequence[object]]]) -> None:
        """Adds the rows of other tables."""
        for name, columns in tables.items():
            self._append(name, **columns)

    def write(self, folder: Path) -> None:
        """Writes the tables into a folder."""
        for name, columns in self._tables.items():
            write_table(folder, name, columns)

    def load(self, folder: Path) -> None:
        """Goes on from tables that were written."""
        self.append({name: read_table(folder, name) for name in self._tables})

    def hardest_pull(self, names: Sequence[str], room: int) -> HardestPull | None:
        """Of some functionals the one that fell most, and what pulled it down; None if none fell.

        The example is the one that in sum lowered it most, the step the one of its steps that did.
        What fell between steps that were entered does not count, nor, if there are others, examples
        with an answer of more than `room` tokens.
        """
        steps, lines = read_arrays(self._tables["steps"]), read_arrays(self._tables["lines"])
        accounts = {}
        for name in names if self.entered else ():  # no step, no account
            accounts[name] = account_of(name, steps, lines, every_step=False)
        fell = {name: account.end - account.start for name, account in accounts.items()}
        worst = min(fell, key=fell.__getitem__, default=None)
        if worst is None or fell[worst] >= 0:
            return None
        table = read_arrays(self._tables["responses"])
        responses = Responses(table["example"], table["side"], table["step"])
        nats = accounts[worst].lines
        rows: list[Any] = self._tables["responses"]["tokens"]
        # Examples with such an answer; the array takes booleans as a mask.
        long = set(table["example"][[len(tokens) > room for tokens in rows]])
        pushers = responses.pushers(nats)  # what lowered it most comes first
        fitting = [pusher for pusher in pushers if pusher.example not in long]
        puller = (fitting or pushers)[0].example
        # NaN in steps that the example is not in.
        by_step = responses.by_step(nats, [responses.examples.index(puller)])[0]
        return HardestPull(worst, puller, responses.steps[int(np.nanargmin(by_step))])

    def summary(self) -> LedgerSummary:
        """How well the account closes."""
        steps, lines = read_arrays(self._tables["steps"]), read_arrays(self._tables["lines"])
        accounts = [
            account_of(name, steps, lines, every_step=self._every_step) for name in self.names
        ]

        def largest(part: Callable[[Account], float]) -> float:
            # What never moved has no path, and nothing that could fail to close.
            return max(abs(part(account)) / (account.length or 1.0) for account in accounts)

        return LedgerSummary(
            steps=self.entered,
            responses=len(self._tables["responses"]["step"]),
            closure=largest(lambda account: account.missing),
            # An `Account` counts rounding as a part of its residual; here each has its share.
            residual_share=largest(lambda account: account.residual - account.arithmetic),
            rounding_share=largest(lambda account: account.arithmetic),
            whole=self._every_step,
            every=self._every,
            lines=self.lines,
        )


class InRunLedger:
    """Writes what every response of a step did at once, as the step has been made.

    A step's account needs nothing of later steps if momentum is counted where it acts: a line is
    what the response's own gradient did in this step, and `momentum` what earlier ones did in it.

    **Arguments:**

    - `model`: a copy of the model that is trained; its weights come with each step.
    - `probes`: rows that are watched.
    - `file`: where lines are appended, one JSON object each (`StepLine`).

    **Raises:** `ConfigError` for a kind that is not watched, or of which no answer fits.
    """

    def __init__(
        self,
        config: InRunLedgerConfig,
        model: nn.Module,
        encoder: Encoder,
        probes: Sequence[ProbeRow],
        file: Path,
    ) -> None:
        watched = training_means(config.kinds, probes, encoder, config.pairs, "ledger.kinds")
        self._kinds = [row.kind for row, _ in watched]
        policy = PolicyFunction(model.to(distributed.device()))
        self._ledger = Ledger(policy, [functional for _, functional in watched])
        self._file = file

    def __call__(self, record: StepRecord) -> dict[str, float]:
        """Writes the step's lines; returns its sums as metrics, `ledger/<kind>/<part>`, in nats."""
        account = self._ledger.enter(record)
        self._ledger.forget()  # so that momentum counts where it acts
        with self._file.open("a") as file:
            file.writelines(line.model_dump_json() + "\n" for line in _lines(account, self._kinds))
        return part_metrics(account.parts(), self._kinds)


def part_metrics(
    parts: Mapping[str, Float[Tensor, " functionals"]], kinds: Sequence[str]
) -> dict[str, float]:
    """`ledger/<kind>/<part>` of the functionals of these kinds, in nats."""
    metrics = {}
    for part, nats in parts.items():
        for kind, value in zip(kinds, nats.tolist(), strict=True):
            metrics[f"ledger/{kind}/{part}"] = value
    return metrics


def _lines(account: StepAccount, kinds: Sequence[str]) -> Iterator[StepLine]:
    for kind, column in zip(kinds, account.lines.T.tolist(), strict=True):
        for number, (response, nats) in enumerate(zip(account.responses, column, strict=True)):
            yield StepLine(
                step=account.step,
                functional=kind,
                example=response.id,
                side=response.side,
                response=number,
                nats=nats,
            )
