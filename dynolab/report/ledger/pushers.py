"""Who pulled an answer down, and who held it up: the strongest pushers of single answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dynolab.data.rows import Example
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger, Pusher
from dynolab.report.page import Section, section, table
from dynolab.report.text import excerpt, number

EACH_WAY = 20
IN_TABLE = 3
HEAD = ("example", "nats", "its chosen", "its rejected", "at steps", "prompt", "chosen", "rejected")


def pusher_section(ledger: Ledger) -> Section | None:
    """The answers with an account of their own, each with its strongest pushers and their texts."""
    singles = [a for a in ledger.accounts if a.row.pairs == (a.row.name,)]
    if not singles:
        return None
    rows, lines, details = ledger.rows, [], []
    for account in singles:
        pushers = ledger.pushers(account)
        lines.append(
            (
                account.row.name,
                excerpt(rows[account.row.name].prompt, 60) if account.row.name in rows else "–",
                number(account.end - account.start, sign=True),
                _strongest(pushers[:IN_TABLE]),
                _strongest(pushers[::-1][:IN_TABLE]),
                _own_share(account, pushers),
            )
        )
        details.append(_details(account, pushers, rows))
    head = ("pair", "prompt", "Δ chosen", "pulled down by", "pushed up by", "its own pair did")
    return section(
        "pushers",
        "Who pulled these answers down",
        _message(singles, ledger),
        table(head, lines, "ssnssn"),
        *details,
        note="The chosen answers that fell most over the training. Numbers are nats over the whole "
        "training, sums of the example's lines; “its chosen” and “its rejected” are the parts that "
        "went through either answer of the pusher.",
    )


def _strongest(pushers: Sequence[Pusher]) -> str:
    return ", ".join(f"{p.example} ({number(p.total, 2, sign=True)})" for p in pushers)


def _own_share(account: FunctionalAccount, pushers: Sequence[Pusher]) -> str:
    own = sum(p.total for p in pushers if p.example == account.row.name)
    return number(own, sign=True)


def _details(
    account: FunctionalAccount, pushers: Sequence[Pusher], rows: Mapping[str, Example]
) -> Markup:
    """A fold-out table of the strongest pushers each way, with their texts."""
    strongest = [*pushers[:EACH_WAY], *pushers[: -EACH_WAY - 1 : -1]]
    seen = dict.fromkeys(p.example for p in strongest)
    by_name = {p.example: p for p in strongest}
    lines = []
    for pusher in (by_name[name] for name in seen):
        row = rows.get(pusher.example)
        lines.append(
            (
                pusher.example,
                number(pusher.total, sign=True),
                number(pusher.from_chosen, sign=True),
                number(pusher.from_rejected, sign=True),
                ", ".join(map(str, pusher.steps)),
                excerpt(row.prompt, 60) if row else "–",
                excerpt(row.chosen, 60) if row else "–",
                excerpt(row.rejected or "–", 60) if row else "–",
            )
        )
    summary = Markup("<summary>{}</summary>").format(
        f"{account.row.name}: the strongest {EACH_WAY} each way"
    )
    return Markup("<details>{}{}</details>").format(summary, table(HEAD, lines, "snnnssss"))


def _message(singles: Sequence[FunctionalAccount], ledger: Ledger) -> str:
    shares = []
    for account in singles:
        totals = ledger.by_example(account)
        down = -totals[totals < 0].sum()
        top = -sum(sorted(totals.tolist())[:EACH_WAY])
        shares.append(top / down if down else 0.0)
    mean = 100 * sum(shares) / len(shares)
    return (
        f"Of all that pulled these {len(singles)} answers down, the {EACH_WAY} strongest examples "
        f"did {mean:.0f} % on average."
    )
