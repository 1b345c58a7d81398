"""The reverse view: which pairs pulled the fallen answers down, and which of them each lifted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from numpy import ndarray

from dynolab.report.inputs.ledger import FunctionalAccount, Ledger
from dynolab.report.ledger.fallen import fallen_accounts, these_answers
from dynolab.report.ledger.named_pairs import named_pair
from dynolab.report.ledger.pushers import EACH_WAY
from dynolab.report.page import Section, section, table
from dynolab.report.text import excerpt, number

_SHOWN = 8  # pairs
_NAMED = 3  # answers that a pair lowered or lifted
_PROMPT = 60  # characters
_TOGETHER = Markup('<span class="num">{} {}</span>').format


def puller_section(ledger: Ledger) -> Section | None:
    """The pairs that lowered the answers with an account of their own most; None without such."""
    answers = fallen_accounts(ledger)
    if not answers:
        return None
    names = [account.row.name for account in answers]
    totals = _totals(ledger, answers)
    order = np.argsort(totals.sum(axis=0))
    worst = totals[:, order[0]]
    rows = []
    for place in order[:_SHOWN]:
        pushes, example = totals[:, place], ledger.examples[place]
        row = ledger.rows.get(example)
        rows.append(
            (
                named_pair(example, ledger.rows),
                number(float(pushes.sum()), sign=True),
                number(float(np.minimum(pushes, 0).sum()), sign=True),
                _answers(ledger, names, pushes),
                _answers(ledger, names, -pushes, sign=-1),
                excerpt(row.prompt, _PROMPT, end=True) if row else "–",
            )
        )
    down, up = worst[worst < 0], worst[worst > 0]
    which = f"{len(down)} of {these_answers(len(names))}" if len(names) > 1 else these_answers(1)
    lifted = f" and lifted {len(up)} by {number(float(up.sum()))}" if len(up) else ""
    return section(
        "pullers",
        "Which pairs pulled most answers down",
        f"“{excerpt(ledger.examples[order[0]])}” pulled {which} down, "
        f"by {number(float(-down.sum()))} nats together{lifted}.",
        table(
            ("pair", "in sum", "lowered by", "whom it lowered", "whom it lifted", "prompt"),
            rows,
            "snnsss",
        ),
        note=f"What a pair did to {these_answers(len(names))} over {ledger.span}, in nats; pairs "
        "that in sum lowered most come first. “dynolab explore” shows it for all watched answers "
        "too: the mean over the whole training, single ones at the recorded steps. Who comes first "
        "depends on the order of the batches and on the rows held out: --set seed=1 --set "
        "name=other-seed shows another.",
    )


def strongest_pullers(ledger: Ledger) -> list[str]:
    """The pairs that in sum lowered the answers with an account of their own, the strongest first.

    At most `EACH_WAY`, and a fifth of the pairs; empty without such answers.
    """
    count = min(EACH_WAY, max(1, len(ledger.examples) // 5))
    return [example for example, nats in net_pulls(ledger)[:count] if nats < 0]


def net_pulls(ledger: Ledger) -> list[tuple[str, float]]:
    """Every pair with its pushes on the answers that have an account of their own, their sum, nats.

    The one that lowered them most comes first. A pair that lifts one answer by as much as it lowers
    another is no culprit: without it they would end as low.
    """
    answers = fallen_accounts(ledger)
    if not answers:
        return []
    net = _totals(ledger, answers).sum(axis=0)
    return [(ledger.examples[place], float(net[place])) for place in np.argsort(net)]


def _totals(
    ledger: Ledger, answers: Sequence[FunctionalAccount]
) -> Float[ndarray, "answers examples"]:
    """What every pair did to every answer, in nats."""
    return np.array([ledger.by_example(account) for account in answers])


def _answers(ledger: Ledger, names: list[str], pushes: np.ndarray, sign: int = 1) -> str | Markup:
    """How many answers a pair lowered, the lowest by name; with sign −1, those that it lifted."""
    lowest = [place for place in np.argsort(pushes) if pushes[place] < 0]
    if not lowest:
        return "none"
    shown = [
        _TOGETHER(
            named_pair(names[place], ledger.rows),
            number(sign * float(pushes[place]), 2, sign=True),
        )
        for place in lowest[:_NAMED]
    ]
    more = f" and {len(lowest) - _NAMED} more" if len(lowest) > _NAMED else ""
    return Markup(", ").join(shown) + more
