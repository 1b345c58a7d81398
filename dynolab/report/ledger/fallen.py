"""The answers that fell most: through which side, and through which tokens of a pair."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from dynolab.report.inputs.ledger import FunctionalAccount, Ledger, Moment, Pusher
from dynolab.report.ledger.coloured import Tokens, summed

Side = Literal["chosen", "rejected"]


def fallen_accounts(ledger: Ledger) -> list[FunctionalAccount]:
    """The answers with an account of their own that fell, the one that fell most first.

    Where none fell: those that rose least.
    """
    singles = [account for account in ledger.accounts if account.row.single]
    singles.sort(key=lambda account: account.end - account.start)
    return [account for account in singles if account.end < account.start] or singles


def mean_sides(ledger: Ledger, accounts: Sequence[FunctionalAccount]) -> dict[Side, float]:
    """What all chosen and all rejected answers did to some answers: the mean over these, nats."""
    sides: tuple[Side, ...] = ("chosen", "rejected")
    return {
        side: fmean(ledger.side_total(account, side).mean for account in accounts) for side in sides
    }


def hardest_side(pusher: Pusher, moments: Sequence[Moment]) -> tuple[Side, Tokens]:
    """The side of an example that pulled an answer down hardest, and what its tokens did.

    **Arguments:** `moments`: the hardest pulls on the answer; without one of the side's there are
    no tokens.
    """
    side: Side = "rejected" if pusher.from_rejected <= pusher.from_chosen else "chosen"
    return side, summed([m for m in moments if (m.example, m.side) == (pusher.example, side)])


def these_answers(count: int) -> str:
    """The counted answers in a sentence."""
    return "this answer" if count == 1 else f"these {count} answers"
