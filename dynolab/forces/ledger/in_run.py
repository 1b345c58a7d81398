"""The account of single steps while a training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from dynolab import distributed
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.account import Ledger, StepAccount
from dynolab.forces.ledger.watched import check_kinds, kind_means
from dynolab.results.ledger import StepLine
from dynolab.training.config import InRunLedgerConfig
from dynolab.training.step_record import StepRecord

SIDES = ("chosen", "rejected")


class InRunLedger:
    """Writes what every response of a step did at once, as the step has been made.

    A step's account needs nothing of later steps if momentum is counted where it acts: a line is
    what the response's own gradient did in this step, and `momentum` what earlier ones did in it.

    **Arguments:**

    - `model`: a copy of the model that is trained; its weights come with each step.
    - `probes`: rows that are watched.
    - `file`: where lines are appended, one JSON object each (`StepLine`).

    **Raises:** `ConfigError` for a kind that is not watched.
    """

    def __init__(
        self,
        config: InRunLedgerConfig,
        model: nn.Module,
        encoder: Encoder,
        probes: Sequence[ProbeRow],
        file: Path,
    ) -> None:
        check_kinds(config.kinds, probes, "ledger.kinds")
        training = [row for row in probes if row.split == "train"]
        self._watched = [
            (row.kind, functional)
            for row, functional in kind_means(training, encoder, config.pairs)
            if row.kind in config.kinds
        ]
        self._policy, self._file = PolicyFunction(model.to(distributed.device())), file

    def __call__(self, record: StepRecord) -> dict[str, float]:
        """Writes the step's lines; returns its sums as metrics, `ledger/<kind>/<part>`, in nats."""
        account = Ledger(self._policy, [functional for _, functional in self._watched]).enter(
            record
        )
        kinds = [kind for kind, _ in self._watched]
        with self._file.open("a") as file:
            for line in _lines(account, kinds):
                file.write(line.model_dump_json() + "\n")
        return {
            f"ledger/{kind}/{part}": values[place]
            for place, kind in enumerate(kinds)
            for part, values in _parts(account).items()
        }


def _lines(account: StepAccount, kinds: Sequence[str]) -> list[StepLine]:
    return [
        StepLine(
            step=account.step,
            functional=kind,
            example=response.id,
            side=response.side,
            response=number,
            nats=float(account.lines[number, place]),
        )
        for place, kind in enumerate(kinds)
        for number, response in enumerate(account.responses)
    ]


def _parts(account: StepAccount) -> dict[str, list[float]]:
    """Sums over a step's responses by side, and what else moved the answers."""
    parts = {
        side: account.lines[[response.side == side for response in account.responses]].sum(0)
        for side in SIDES
    }
    parts |= {
        "decay": account.decay,
        "momentum": account.carried_in,
        "residual": account.residual,
        "measured": account.measured,
    }
    return {name: values.tolist() for name, values in parts.items()}
