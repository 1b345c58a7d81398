"""The beginning of a study's page: its question, the answer in three sentences, the tiles."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from markupsafe import Markup

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import Split
from dynolab.data.unknown import UnknownTokens
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import change
from dynolab.report.inputs.ledger import FunctionalAccount, Ledger, Moment, Pusher
from dynolab.report.inputs.study import ReportInputs, Training
from dynolab.report.ledger.fallen import fallen_accounts, hardest_side, mean_sides
from dynolab.report.ledger.named_pairs import named_pair
from dynolab.report.ledger.named_tokens import strongest_tokens
from dynolab.report.ledger.pullers import net_pulls
from dynolab.report.page import Tile
from dynolab.report.study.learning_paths import Paths
from dynolab.report.style import SPLITS, objective_name
from dynolab.report.text import excerpt, join, mean_and_ends, number, with_interval
from dynolab.report.verdicts import PLURAL, claims_tile
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, clear, dominating, mean_interval

_HEADLINES = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*", "gap": "gap y* − y⁺"}

_WHERE: dict[Split, str] = {"train": "in training", "heldout": "held out"}
_PULLERS = 3  # pairs that are named
_LITTLE = 0.5  # nats of margin
_MANY = 0.2  # of the answers
_MOSTLY = 0.75  # of a pair's pull


def question(trainings: Sequence[Training]) -> str:
    """What the page answers."""
    last = trainings[-1].stage if trainings else ""
    name = objective_name(last) if last else "training"
    if last in PAIR_OBJECTIVES:
        return f"What did {name} do to the answers, and which pairs and tokens did it?"
    return f"What did {name} do to the answers?"


def answer(
    inputs: ReportInputs,
    changes: Mapping[Split, np.ndarray],
    margins: Mapping[Split, float],
    remedy: str | Markup,
) -> list[str | Markup]:
    """What became of the chosen answers, through what, and what to try.

    **Arguments:** `changes`: `chosen_changes`, none of a training that is not on pairs; `margins`:
    `margins_learned`; `remedy`: the last sentence.
    """
    if not changes:
        return []
    name = objective_name(inputs.trainings[-1].stage)
    sentences = (
        _fell(name, changes, "" if inputs.audit and inputs.audit.changes else "watched "),
        _hardly_learned(name, margins),
        _through_what(inputs),
        _unknown(inputs.trainings[-1]),
        remedy,
    )
    return [sentence for sentence in sentences if sentence]


def chosen_changes(inputs: ReportInputs, paths: Paths) -> dict[Split, np.ndarray]:
    """Change of every chosen answer in the last training, nats: of all pairs, else of watched."""
    last = inputs.trainings[-1].stage
    found: dict[Split, np.ndarray] = {}
    for split in SPLITS:
        audited = (
            [row.change for row in inputs.audit.changes if row.split == split]
            if (inputs.audit)
            else []
        )
        own = paths.get((last, split))
        if audited:
            found[split] = np.array(audited)
        elif own is not None and "chosen" in own.logp:
            found[split] = change(own.logp["chosen"])
    return found


def margins_learned(inputs: ReportInputs, paths: Paths) -> dict[Split, float]:
    """By how many nats the margin of either split's pairs grew in the last training, on average."""
    found: dict[Split, float] = {}
    for split in SPLITS:
        own = paths.get((inputs.trainings[-1].stage, split))
        if own is not None and {"chosen", "rejected"} <= own.logp.keys():
            margins = own.logp["chosen"] - own.logp["rejected"]
            found[split] = mean_interval(change(margins)).mean
    return found


def _hardly_learned(name: str, margins: Mapping[Split, float]) -> str:
    """Says so where there is little to explain."""
    if not margins.get("train", _LITTLE) < _LITTLE:
        return ""
    changes = [
        f"{number(margin, 2, sign=True)} nats {_WHERE[split]}" for split, margin in margins.items()
    ]
    return (
        f"{name} hardly learned the preference: the margin, chosen minus rejected, changed by "
        f"{join(changes)}. Train longer (preference.steps) or at a higher rate."
    )


def _unknown(training: Training) -> str:
    """Says so where most answers hold what the tokenizer cannot write."""
    unknown = UnknownTokens.of_metrics(training.rows)
    if unknown.answers < _MANY * unknown.texts or not unknown.texts:
        return ""
    which = join(list(unknown.written)) or "some characters"
    return (
        f"The tokenizer does not know {which}, which {unknown.answers} of {unknown.texts} answers "
        "hold: the model reads the unknown token in their place, in prompts too, and tokens before "
        f"and after it push each other. {_replaced(unknown)}"
    )


def _replaced(unknown: UnknownTokens) -> str:
    """How to train on known characters instead."""
    if unknown.option:
        return f"Replace them in the data first: add {unknown.option} to the study’s command."
    if not unknown.written:
        return "Replace them in the data (data.replace)."
    characters = json.dumps(dict.fromkeys(unknown.written, "TEXT"), ensure_ascii=False)
    setting = shlex.quote(f"data.replace={characters}")
    return f"If other texts can stand for them, name these: --set {setting}."


def _fell(name: str, changes: Mapping[Split, np.ndarray], which: str) -> str:
    """On how many pairs of either split the chosen answers fell, and by how much on average.

    **Arguments:** `which`: "watched " where not all pairs were.
    """
    parts = []
    for split, own in changes.items():
        mean, ends = mean_and_ends(mean_interval(own))
        parts.append(
            f"{(own < 0).sum()} of {len(own)} {which}{SPLITS[split]} pairs (mean over all of them "
            f"{f'{mean} nats {ends}'.rstrip()}{_without_one(own)})"
        )
    ways = [f"{_way(mean_interval(own))} {_WHERE[split]}" for split, own in changes.items()]
    return f"Under {name} the chosen answers fell on {join(parts)}: on average they {join(ways)}."


def _without_one(changes: np.ndarray) -> str:
    """The mean without a single answer that decides it, such as a very long one."""
    place = dominating(changes)
    if place is None:
        return ""
    others = mean_interval(np.delete(changes, place)).mean
    return (
        f"; {number(others, 2, sign=True)} without the one that changed by "
        f"{number(changes[place], sign=True)}"
    )


def _way(mean: Interval) -> str:
    """In a word what a mean change is, where its interval says so."""
    if not clear(mean):
        return "did not clearly change"
    return "rose" if mean.mean > 0 else "fell"


def _through_what(inputs: ReportInputs) -> str | Markup:
    """Which side pulled them down, and who the answer that fell most."""
    if inputs.ledger is not None:
        return _by_account(inputs.ledger)
    rows = [
        row for training in inputs.trainings[-1:] for row in training.forces if row.kind == "chosen"
    ]
    if not rows:
        return ""
    steps = len({row.step for row in rows})
    chosen, rejected = (
        np.mean([getattr(row, side) for row in rows]) for side in ("from_chosen", "from_rejected")
    )
    made = f"In {steps} recorded step{'s' if steps > 1 else ''}"
    return (
        f"{made}, chosen answers pushed them by {number(chosen, sign=True)} nats a step on average "
        f"and rejected answers by {number(rejected, sign=True)}."
    )


def _by_account(ledger: Ledger) -> Markup:
    """What either side did: to the answers that fell most, else to the means of watched answers."""
    if singles := fallen_accounts(ledger):
        return _hardest(ledger, singles)
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


def _hardest(ledger: Ledger, singles: Sequence[FunctionalAccount]) -> Markup:
    """What either side did to the answers that fell most, and who to the first of them."""
    worst, several = singles[0], len(singles) > 1
    extreme = "fell most" if worst.end < worst.start else "rose least"
    culprit, row = ledger.pushers(worst)[0], ledger.rows.get(worst.row.name)
    splits = Counter(account.row.split for account in singles)
    counts = join([f"{splits[split]} {SPLITS[split]}" for split in SPLITS if splits[split]])
    which = f"the {counts} ones that did" if several else counts
    change = fmean(account.end - account.start for account in singles)
    sides = mean_sides(ledger, singles)
    pullers = [
        Markup("{} ({}{})").format(
            named_pair(pair, ledger.rows),
            number(nats, sign=True),
            _mostly_one(pair, nats, ledger, singles),
        )
        for pair, nats in net_pulls(ledger)[:_PULLERS]
        if nats < 0
    ]
    return Markup(
        "The {} that {} ({}) changed by {} nats{}, of which pushes on rejected answers did {} and "
        "pushes on chosen answers {}. {}{}, to “{}” ({} in all), was pulled down hardest by {} "
        "({}: {})."
    ).format(
        f"{len(singles)} watched answers" if several else "watched answer",
        extreme,
        which,
        number(change, sign=True),
        " on average" if several else "",
        number(sides["rejected"], sign=True),
        number(sides["chosen"], sign=True),
        Markup("Summed over all {}, the pairs {} pulled down most in this one training. ").format(
            len(singles), Markup(", ").join(pullers)
        )
        if several and pullers
        else "",
        "The one that fell most" if several else "That answer",
        excerpt(row.prompt, 60, end=True) if row else worst.row.name,
        number(worst.end - worst.start, sign=True),
        named_pair(culprit.example, ledger.rows),
        number(culprit.total, sign=True),
        _through_sides(culprit, ledger.moments.get(worst.row.name, ())),
    )


def _mostly_one(
    pair: str, nats: float, ledger: Ledger, accounts: Sequence[FunctionalAccount]
) -> str:
    """Says so where most of a pair's pull is on a single answer."""
    place = ledger.examples.index(pair)
    least = min(float(ledger.by_example(account)[place]) for account in accounts)
    if len(accounts) == 1 or least > _MOSTLY * nats:
        return ""
    return f", of which {number(least, sign=True)} on one answer"


def _through_sides(culprit: Pusher, moments: Sequence[Moment]) -> str:
    """What either answer of an example did, the harder one first with its tokens."""
    side, tokens = hardest_side(culprit, moments)
    pulls = {"chosen": culprit.from_chosen, "rejected": culprit.from_rejected}
    other = "rejected" if side == "chosen" else "chosen"
    through = strongest_tokens(tokens, down=True)
    most = f", most by {through}" if through else ""
    return (
        f"{number(pulls[side], sign=True)} through its {side} answer{most}; "
        f"{number(pulls[other], sign=True)} through its {other} one"
    )


def tiles(inputs: ReportInputs, paths: Paths, verdicts: Sequence[Verdict]) -> list[Tile]:
    """The changes that a reader wants first, of both splits, and the claims."""
    stages = [training.stage for training in inputs.trainings]
    found = [
        _change_tile(stage, kind, paths)
        for stage in stages
        for kind in (("chosen", "gap") if stage.startswith("sft") else _HEADLINES)
    ]
    return [*found, claims_tile("Claims that appear", verdicts, PLURAL)]


def _change_tile(stage: str, kind: str, paths: Paths) -> Tile:
    label = f"{objective_name(stage)}: {_HEADLINES[kind]}"
    texts: dict[Split, str] = {}
    for split in SPLITS:
        own = paths.get((stage, split))
        values = None if own is None else own.gap if kind == "gap" else own.logp.get(kind)
        if values is not None:
            texts[split] = with_interval(mean_interval(change(values)))
    if not texts:
        return Tile(label, "–", "not measured")
    value, _, ends = next(iter(texts.values())).partition(" ")
    lines = [f"{SPLITS[split]} {texts[split]}" for split in list(texts)[1:]]
    return Tile(label, value, "\n".join([f"{ends} nats, {SPLITS[next(iter(texts))]}", *lines]))


def unexplained(verdicts: Sequence[Verdict]) -> str:
    """The share of the steps' changes that the forces leave unexplained, training by training."""
    each = [
        f"{number(verdict.measured[0].mean, 2)} of what {objective_name(verdict.topic)} did"
        for verdict in verdicts
        if verdict.id.endswith("/forces") and verdict.outcome != "not measured"
    ]
    return f"Forces leave {join(each)} unexplained (1 − R²). " if each else ""
