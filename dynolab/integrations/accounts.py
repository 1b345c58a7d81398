"""Accounts on disk: each is there when it is made, and a training that goes on goes on in them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynolab.data.rows import Example, write_rows
from dynolab.forces.ledger.step_account import StepAccount
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.results.ledger import FunctionalRow

ACCOUNTS = "accounts.jsonl"
"""File with a line for each account; what a kill leaves of a line is not read."""

FUNCTIONALS = "functionals.jsonl"

_TAKEN: set[Path] = set()
"""Folders that trainings of this process have written."""


class AccountFolder:
    """The accounts of one training: `tables`, and the rows that they name.

    **Arguments:**

    - `folder`: where they lie. A further training of the same process, and one that goes on with
      other watched answers, have a folder beside it: `ledger-2`, and so on.
    - `watched`: what the accounts are of.
    - `step`: the training begins at it; accounts of earlier steps are read, later ones are dropped.
    """

    def __init__(self, folder: Path, watched: Sequence[FunctionalRow], step: int) -> None:
        self.tables = LedgerTables([row.name for row in watched], whole=False)
        self.rows: dict[str, Example] = {}
        self.checks: dict[str, str] = {}
        self.folder = self._choose(folder, watched, goes_on=step > 0)
        _TAKEN.add(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = list(_whole_lines(self.folder / ACCOUNTS)) if step > 0 else []
        kept = [line for line in lines if line["step"] < step]
        self._replace(kept)
        write_rows(self.folder / FUNCTIONALS, watched)
        for line in kept:
            self._take(line)

    def add(
        self,
        account: StepAccount,
        rows: Mapping[str, Example],
        lines: str,
        checks: Mapping[str, str],
    ) -> None:
        """Writes an account, and the rows that its sequences are of.

        **Arguments:** `lines`, `checks`: of `LedgerSummary`.
        """
        alone = LedgerTables(self.tables.names, whole=False)
        alone.add(account)
        line = {
            "step": account.step,
            "lines": lines,
            "checks": dict(checks),
            "rows": [rows[name].model_dump() for name in rows if name not in self.rows],
            "tables": alone.columns,
        }
        with (self.folder / ACCOUNTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._take(line)

    def write_page(self) -> None:
        """Writes tables and page of all accounts so far."""
        from dynolab.report.ledger.page import write_ledger_page
        from dynolab.results.ledger import read_ledger

        self.tables.write(self.folder)
        checks = {"checks": tuple(self.checks.values())}
        summary = self.tables.summary().model_copy(update=checks)
        (self.folder / "ledger.json").write_text(summary.model_dump_json(indent=1))
        write_rows(self.folder / "train.jsonl", self.rows.values())
        ledger = read_ledger(self.folder, self.folder)
        write_ledger_page(ledger, "ledger", "", (), self.folder)

    def _take(self, line: Mapping[str, Any]) -> None:
        self.tables.append(line["tables"])
        if line["lines"] == "shares":
            self.tables.lines = "shares"
        self.checks |= line["checks"]
        for row in line["rows"]:
            self.rows[row["id"]] = Example.model_validate(row)

    def _choose(self, folder: Path, watched: Sequence[FunctionalRow], *, goes_on: bool) -> Path:
        """The first folder of the name that is this training's, or nobody's."""
        number, chosen = 1, folder
        while not self._is_ours(chosen, watched, goes_on=goes_on):
            number += 1
            chosen = folder.with_name(f"{folder.name}-{number}")
        return chosen

    def _is_ours(self, folder: Path, watched: Sequence[FunctionalRow], *, goes_on: bool) -> bool:
        if not goes_on:
            return folder not in _TAKEN
        file = folder / FUNCTIONALS
        if not file.exists():
            return True
        rows = [row.model_dump_json() for row in watched]
        return [json.loads(row) for row in rows] == list(_whole_lines(file))

    def _replace(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Writes these lines in place of all."""
        unfinished = self.folder / f"{ACCOUNTS}.unfinished"
        unfinished.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        unfinished.replace(self.folder / ACCOUNTS)


def _whole_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file that were written to their end."""
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
