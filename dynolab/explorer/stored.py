"""Lines that the study's ledger has stored: to the means of kinds, and to single answers."""

from __future__ import annotations

import numpy as np

from dynolab.data.rows import ProbeRow
from dynolab.explorer.lines import Lines
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger
from dynolab.results.ledger import FunctionalRow


def lines_to_means(
    ledger: Ledger | None, *, singles: bool = False
) -> tuple[list[FunctionalRow], Lines] | None:
    """The lines to the mean of every kind, over all steps; with `singles` to single answers, too.

    None without a ledger, and where steps were only sampled.
    """
    if ledger is None or ledger.sampled:
        return None
    means = [account for account in ledger.accounts if singles or not account.row.single]
    if not means:
        return None
    lines = Lines.beside([_whole(ledger, account) for account in means])
    return [account.row for account in means], lines


def lines_to_answer(ledger: Ledger | None, row: ProbeRow, step: int | None = None) -> Lines | None:
    """The lines to one answer, over all steps or of one.

    None without an account of its own, for a step that has none, and where steps were only sampled.
    """
    if ledger is None or ledger.sampled:
        return None
    for account in ledger.accounts:
        own = account.row
        if own.single and (own.name, own.split, own.kind) == (row.pair_id, row.split, row.kind):
            whole = _whole(ledger, account)
            if step is None:
                return whole
            if step not in ledger.steps:
                return None
            moved = np.diff(account.path)[ledger.steps.index(step)]
            return whole.at_step(step, np.array([moved]))
    return None


def _whole(ledger: Ledger, account: FunctionalAccount) -> Lines:
    return Lines(
        step=ledger.step,
        pair=ledger.example,
        side=ledger.side,
        nats=account.lines[:, None],
        measured=np.array([account.end - account.start]),
        apart={
            "weight decay": np.array([account.decay]),
            "earlier momentum": np.array([account.carried_in]),
        },
    )
