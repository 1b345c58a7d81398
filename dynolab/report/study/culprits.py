"""Through which side, pairs and tokens the answers that fell most were pulled down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from dynolab.data.rows import Example
from dynolab.data.sources.columns import ASSISTANT
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger, Moment, Pusher
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.ledger.coloured import Tokens
from dynolab.report.ledger.fallen import Side, fallen_accounts, hardest_side, summed_sides
from dynolab.report.ledger.named_pairs import named_pair
from dynolab.report.ledger.named_tokens import strongest_tokens
from dynolab.report.ledger.pullers import net_pulls
from dynolab.report.style import SPLITS
from dynolab.report.text import excerpt, join, number

_NAMED = 3  # pairs
_TEXT = 50  # characters
_MOSTLY, _LITTLE = 0.75, 0.25  # of a pair's pull


def through_what(inputs: ReportInputs) -> list[str | Markup]:
    """Which side pulled the chosen answers down, which pairs most, and through which tokens."""
    if inputs.ledger is not None:
        singles = fallen_accounts(inputs.ledger)
        if not singles:
            return [_of_means(inputs.ledger)]
        return [_of_singles(inputs.ledger, singles), *_pullers(inputs.ledger, singles)]
    rows = [
        row for training in inputs.trainings[-1:] for row in training.forces if row.kind == "chosen"
    ]
    if not rows:
        return []
    steps = len({row.step for row in rows})
    chosen, rejected = (
        np.mean([getattr(row, side) for row in rows]) for side in ("from_chosen", "from_rejected")
    )
    made = f"In {steps} recorded step{'s' if steps > 1 else ''}"
    return [
        f"{made}, chosen answers pushed them by {number(chosen, sign=True)} nats a step on average "
        f"and rejected answers by {number(rejected, sign=True)}."
    ]


def worst_answer(ledger: Ledger) -> list[Markup]:
    """Who pulled the answer that fell most down hardest, through which side and tokens.

    Empty without such an answer.
    """
    singles = fallen_accounts(ledger)
    if not singles:
        return []
    worst = singles[0]
    culprit = ledger.pushers(worst)[0]
    sentence = Markup("{}, to “{}” ({} in all), was pulled down hardest by {} ({}: {}).").format(
        "The watched answer that fell most"
        if worst.end < worst.start
        else "The watched answer that rose least",
        _prompt(ledger, worst.row.name),
        number(worst.end - worst.start, sign=True),
        named_pair(culprit.example, ledger.rows),
        number(culprit.total, sign=True),
        _through_sides(culprit, ledger.moments.get(worst.row.name, ())),
    )
    return [sentence]


def _of_means(ledger: Ledger) -> Markup:
    """What either side did to the means of watched answers."""
    means = {
        account.row.split: account for account in ledger.accounts if account.row.kind == "chosen"
    }
    accounts = [means[split] for split in SPLITS if split in means]
    watched = [
        f"{len(own.row.pairs)} {SPLITS[own.row.split]} pairs "
        f"({number(own.end - own.start, sign=True)})"
        for own in accounts
    ]
    down, up = (
        join([number(ledger.side_total(own, side).mean, sign=True) for own in accounts])
        for side in ("rejected", "chosen")
    )
    return Markup(
        "The account follows the chosen answers of {}, in nats on average: over the whole "
        "training, pushes on rejected answers moved these by {}, pushes on chosen answers by {}."
    ).format(join(watched), down, up)


def _of_singles(ledger: Ledger, singles: Sequence[FunctionalAccount]) -> Markup:
    """What either side did to the answers that fell most."""
    several = len(singles) > 1
    extreme = "fell most" if singles[0].end < singles[0].start else "rose least"
    splits = Counter(account.row.split for account in singles)
    counts = join([f"{splits[split]} {SPLITS[split]}" for split in SPLITS if splits[split]])
    together = " together" if several else ""
    change = sum(account.end - account.start for account in singles)
    sides = summed_sides(ledger, singles)
    pulls = [nats for _, nats in net_pulls(ledger)]
    down, up = [nats for nats in pulls if nats < 0], [nats for nats in pulls if nats > 0]
    return Markup(
        "The {} that {} ({}) changed by {} nats{}. By side, pushes on rejected answers did {}, "
        "pushes on chosen answers {}; by pair, {}."
    ).format(
        f"{len(singles)} watched answers" if several else "watched answer",
        extreme,
        counts,
        number(change, sign=True),
        together,
        number(sides["rejected"], sign=True),
        number(sides["chosen"], sign=True),
        join([f"{len(nats)} did {number(sum(nats), sign=True)}" for nats in (down, up) if nats]),
    )


def _pullers(ledger: Ledger, singles: Sequence[FunctionalAccount]) -> list[str | Markup]:
    """The pairs that in sum pulled these answers down most, with the side and tokens that did."""
    down = [(pair, nats) for pair, nats in net_pulls(ledger) if nats < 0]
    if not down:
        return []
    most = down[:_NAMED]
    total = sum(nats for _, nats in down)
    share = sum(nats for _, nats in most) / total
    counted = " (row-000000 is the first)" if most[0][0].startswith("row-") else ""
    head = f"These pulled hardest, by {share:.0%} of the {number(total, sign=True)}{counted}:"
    return [head, *(_puller(ledger, singles, pair) for pair, _ in most)]


def _puller(ledger: Ledger, singles: Sequence[FunctionalAccount], pair: str) -> Markup:
    """What a pair did to these answers in sum, by side, and its tokens that pulled hardest.

    Tokens are known of the hardest pulls alone.
    """
    each = [own for account in singles for own in ledger.pushers(account) if own.example == pair]
    in_sum = Pusher(
        pair,
        sum(own.total for own in each),
        sum(own.from_chosen for own in each),
        sum(own.from_rejected for own in each),
        (),
    )
    moments = [m for account in singles for m in ledger.moments.get(account.row.name, ())]
    return Markup("{} (“{}”) {}{}: {}.").format(
        named_pair(pair, ledger.rows),
        _prompt(ledger, pair),
        number(in_sum.total, sign=True),
        _mostly_one(each),
        _through_sides(in_sum, moments, ledger.rows.get(pair)),
    )


def _spread(tokens: Tokens) -> str:
    """Says so where the tokens that are named made little of the pull."""
    pulls = [min(nats, 0.0) for _, nats in tokens]
    few = sum(sorted(pulls)[:3])
    return "spread over many tokens, " if few > _LITTLE * sum(pulls) else ""


def _prompt(ledger: Ledger, pair: str) -> str:
    row = ledger.rows.get(pair)
    return excerpt(row.prompt.removesuffix(ASSISTANT), _TEXT, end=True) if row else pair


def _mostly_one(each: Sequence[Pusher]) -> str:
    """Says so where most of a pair's pull is on a single answer."""
    least = min(own.total for own in each)
    if len(each) == 1 or least > _MOSTLY * sum(own.total for own in each):
        return ""
    return f" (mostly on one of the {len(each)})"


def _through_sides(pusher: Pusher, moments: Sequence[Moment], row: Example | None = None) -> str:
    """What either answer of an example did, the harder one first, with the tokens that are known.

    **Arguments:** `row`: the example, to quote the harder answer, and the one with tokens.
    """
    known, tokens = hardest_side(pusher, moments)
    pulls: dict[Side, float] = {"rejected": pusher.from_rejected, "chosen": pusher.from_chosen}
    harder, other = sorted(pulls, key=pulls.__getitem__)
    parts = []
    for side, answer in ((harder, f"{harder} answer"), (other, f"{other} one")):
        text = getattr(row, side) if row and side in (harder, known) else None
        quoted = f" “{excerpt(text, _TEXT)}”" if text else ""
        through = strongest_tokens(tokens, down=True) if side == known else ""
        most = f", {_spread(tokens)}most by {through}" if through else ""
        parts.append(f"{number(pulls[side], sign=True)} through its {answer}{quoted}{most}")
    if known != harder:
        parts[0] += ", whose tokens were not taken apart"
    return "; ".join(parts)
