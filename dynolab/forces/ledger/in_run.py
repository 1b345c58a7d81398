"""The account of single steps while a training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from dynolab import distributed
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import training_means
from dynolab.forces.ledger.step_account import StepAccount
from dynolab.results.ledger import StepLine
from dynolab.training.config import InRunLedgerConfig
from dynolab.training.step_record import StepRecord


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
        self._ledger.forget()
        with self._file.open("a") as file:
            file.writelines(line.model_dump_json() + "\n" for line in _lines(account, self._kinds))
        return {
            f"ledger/{kind}/{part}": float(values[place])
            for part, values in account.parts().items()
            for place, kind in enumerate(self._kinds)
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
