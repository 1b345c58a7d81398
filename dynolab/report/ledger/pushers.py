"""Who pulled an answer down, and who held it up: the strongest pushers of single answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from dynolab.data.rows import Example
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger, Moment, Pusher
from dynolab.report.page import Section, section, table
from dynolab.report.text import excerpt, number, token_text

EACH_WAY = 20
MOMENTS = 10
IN_TABLE = 3
HEAD = ("example", "nats", "its chosen", "its rejected", "at steps", "prompt", "chosen", "rejected")


def pusher_section(ledger: Ledger) -> Section | None:
    """The answers with an account of their own, each with its strongest pushers and their texts."""
    singles = [account for account in ledger.accounts if account.row.single]
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
        details.append(_details(account, pushers, ledger))
    steps = "the drawn steps alone" if ledger.sampled else "the whole training"
    head = ("pair", "prompt", "Δ chosen", "pulled down by", "pushed up by", "its own pair did")
    return section(
        "pushers",
        "Who pulled these answers down",
        _message(singles, ledger),
        table(head, lines, "ssnssn"),
        *details,
        note="The chosen answers that fell most over the training. Numbers are nats, sums of the "
        f"example's lines over {steps}; “its chosen” and “its rejected” are the parts that went "
        "through either answer of the pusher.",
    )


def _strongest(pushers: Sequence[Pusher]) -> str:
    return ", ".join(f"{p.example} ({number(p.total, 2, sign=True)})" for p in pushers)


def _own_share(account: FunctionalAccount, pushers: Sequence[Pusher]) -> str:
    own = sum(p.total for p in pushers if p.example == account.row.name)
    return number(own, sign=True)


def _details(account: FunctionalAccount, pushers: Sequence[Pusher], ledger: Ledger) -> Markup:
    """A fold-out with the strongest pushers each way, and the strongest moments by token."""
    name = account.row.name
    summary = Markup("<summary>{}</summary>").format(
        f"{name}: the strongest {EACH_WAY} examples each way, and what pulled hardest by token"
    )
    parts = [_pusher_table(pushers, ledger.rows)]
    if moments := ledger.moments.get(name):
        parts.append(_moment_table(moments[:MOMENTS]))
    return Markup('<details class="more">{}{}</details>').format(summary, Markup().join(parts))


def _pusher_table(pushers: Sequence[Pusher], rows: Mapping[str, Example]) -> Markup:
    strongest = {p.example: p for p in (*pushers[:EACH_WAY], *pushers[: -EACH_WAY - 1 : -1])}
    lines = []
    for pusher in strongest.values():
        row = rows.get(pusher.example)
        texts = (row.prompt, row.chosen, row.rejected) if row else ()
        lines.append(
            (
                pusher.example,
                number(pusher.total, sign=True),
                number(pusher.from_chosen, sign=True),
                number(pusher.from_rejected, sign=True),
                ", ".join(map(str, pusher.steps)),
                *(excerpt(text or "–", 60) for text in texts or ("", "", "")),
            )
        )
    return table(HEAD, lines, "snnnssss")


def _moment_table(moments: Sequence[Moment]) -> Markup:
    """Single lines of the ledger, token by token."""
    lines = [
        (
            moment.step,
            moment.example,
            moment.side,
            number(moment.nats, sign=True),
            _tokens(moment),
        )
        for moment in moments
    ]
    return table(("step", "example", "answer", "nats", "through its tokens"), lines, "nssns")


def _tokens(moment: Moment) -> Markup:
    each = Markup("<code>{}</code> {}")
    return Markup(" · ").join(
        each.format(Markup(token_text(token)), number(nats, 2, sign=True))
        for token, nats in moment.tokens
    )


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
