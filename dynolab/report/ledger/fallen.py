"""The answers that fell most: through which side, and through which tokens of a pair."""

from __future__ import annotations

from collections.abc import Sequence
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


def summed_sides(ledger: Ledger, accounts: Sequence[FunctionalAccount]) -> dict[Side, float]:
    """What all chosen and all rejected answers did to some answers: the sum over these, nats."""
    sides: tuple[Side, ...] = ("chosen", "rejected")
    return {
        side: sum(ledger.side_total(account, side).mean for account in accounts) for side in sides
    }


def hardest_side(pusher: Pusher, moments: Sequence[Moment]) -> tuple[Side, Tokens]:
    """The side of an example to look at for its pull on an answer, and what its tokens did.

    That is the side whose tokens are known to have pulled hardest: of a step in which both pulled,
    those of the harder one are known.

    **Arguments:** `moments`: the hardest pulls on the answer; without one of the example's the side
    that pulled hardest has no tokens.
    """
    by_side: dict[Side, list[Moment]] = {"chosen": [], "rejected": []}
    for moment in moments:
        if moment.example == pusher.example:
            by_side["chosen" if moment.side == "chosen" else "rejected"].append(moment)
    known = {side: sum(m.nats for m in own) for side, own in by_side.items() if own}
    pulls: dict[Side, float] = {"rejected": pusher.from_rejected, "chosen": pusher.from_chosen}
    side = min(known or pulls, key=(known or pulls).__getitem__)
    return side, summed(by_side[side])


def these_answers(count: int) -> str:
    """The counted answers in a sentence."""
    return "this answer" if count == 1 else f"these {count} answers"
