"""Accounts on disk: each is there when it is made, and a training that goes on goes on in them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dynolab.data.rows import Example, Row, json_line, replace_rows, whole_rows, write_rows
from dynolab.forces.ledger.entries import StepAccount
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.results.ledger import FunctionalRow

ACCOUNTS = "accounts.jsonl"
"""File with a line for each account; what a kill leaves of a line is not read."""

FUNCTIONALS = "functionals.jsonl"

_TAKEN: set[Path] = set()
"""Folders that trainings of this process have written."""


class Account(Row):
    """One line of the file: an account, and the rows that no earlier line has."""

    step: int
    lines: Literal["removal", "shares"]
    checks: dict[str, str]
    rows: tuple[Example, ...]
    tables: dict[str, Any]


class AccountFolder:
    """The accounts of one training: `tables`, and the rows that they name.

    **Arguments:**

    - `folder`: where they lie. A further training of the same process, and one that goes on with
      other watched answers, have a folder beside it: `ledger-2`, and so on.
    - `watched`: what the accounts are of.
    - `step`: the training begins at it; accounts of earlier steps are read, later ones are dropped.
    """

    def __init__(self, folder: Path, watched: Sequence[FunctionalRow], step: int) -> None:
        self.tables = LedgerTables([row.name for row in watched], every_step=False)
        self.rows: dict[str, Example] = {}
        self.checks: dict[str, str] = {}
        self.folder = self._choose(folder, watched, goes_on=step > 0)
        _TAKEN.add(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        # A training that begins begins the file anew; one that goes on reads and keeps its lines.
        accounts = whole_rows(self.folder / ACCOUNTS, Account) if step > 0 else ()
        earlier = [account for account in accounts if account.step < step]
        replace_rows(self.folder / ACCOUNTS, earlier)
        write_rows(self.folder / FUNCTIONALS, watched)
        for account in earlier:
            self._take(account)

    def add(
        self,
        account: StepAccount,
        rows: Mapping[str, Example],
        lines: Literal["removal", "shares"],
        checks: Mapping[str, str],
    ) -> None:
        """Writes an account, and the rows that its sequences are of.

        **Arguments:** `lines`, `checks`: of `LedgerSummary`.
        """
        alone = LedgerTables(self.tables.names, every_step=False)
        alone.add(account)
        written = Account(
            step=account.step,
            lines=lines,
            checks=dict(checks),
            rows=tuple(rows[name] for name in rows if name not in self.rows),
            tables=alone.columns,
        )
        with (self.folder / ACCOUNTS).open("a", encoding="utf-8") as file:
            file.write(json_line(written))
            file.flush()
            os.fsync(file.fileno())
        self._take(written)

    def write_page(self) -> None:
        """Writes tables and page of all accounts so far."""
        from dynolab.report.ledger.page import write_ledger_page
        from dynolab.results.ledger_reader import read_ledger

        self.tables.write(self.folder)
        checks = {"checks": tuple(self.checks.values())}
        summary = self.tables.summary().model_copy(update=checks)
        (self.folder / "ledger.json").write_text(summary.model_dump_json(indent=1))
        write_rows(self.folder / "train.jsonl", self.rows.values())
        ledger = read_ledger(self.folder, self.folder)
        write_ledger_page(ledger, "ledger", "", (), self.folder)

    def _take(self, account: Account) -> None:
        """Adds an account that is on disk to what is in memory."""
        self.tables.append(account.tables)
        if account.lines == "shares":
            self.tables.lines = "shares"
        self.checks |= account.checks
        self.rows |= {row.id: row for row in account.rows}

    def _choose(self, folder: Path, watched: Sequence[FunctionalRow], *, goes_on: bool) -> Path:
        """The first folder of the name that is this training's, or nobody's."""
        number, chosen = 1, folder
        while not self._is_ours(chosen, watched, goes_on=goes_on):
            number += 1
            chosen = folder.with_name(f"{folder.name}-{number}")
        return chosen

    def _is_ours(self, folder: Path, watched: Sequence[FunctionalRow], *, goes_on: bool) -> bool:
        """Whether this training writes into a folder.

        One that begins replaces what an earlier process left, but nothing that this process wrote.
        One that goes on needs accounts of the same functionals, or none.
        """
        if not goes_on:
            return folder not in _TAKEN
        file = folder / FUNCTIONALS
        if not file.exists():
            return True
        return list(watched) == list(whole_rows(file, FunctionalRow))
