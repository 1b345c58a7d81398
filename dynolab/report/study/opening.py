"""The beginning of a study's page: its question, the answer in three sentences, the tiles."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from dynolab.claims.verdict import Verdict
from dynolab.comparisons.arm_table import LEAST_COUNT
from dynolab.data.rows import Split
from dynolab.data.unknown import UnknownTokens
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import change
from dynolab.report.inputs.study import ReportInputs, Training
from dynolab.report.page import Tile
from dynolab.report.study.culprits import through_what
from dynolab.report.study.learning_paths import Paths
from dynolab.report.style import SPLITS, objective_name
from dynolab.report.text import join, number, steps_until, with_interval
from dynolab.report.verdicts import PLURAL, claims_tile
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, clear, dominating, mean_interval

_HEADLINES = {"chosen": "chosen y⁺", "rejected": "rejected y⁻", ARGMAX: "y*", "gap": "gap y* − y⁺"}

_WHERE: dict[Split, str] = {"train": "in training", "heldout": "held out"}
_LITTLE = 0.5  # nats of margin
_MANY = 0.2  # of the answers


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
    training = inputs.trainings[-1]
    sentences = (
        _fell(
            objective_name(training.stage),
            changes,
            "" if inputs.audit and inputs.audit.changes else "watched ",
        ),
        _hardly_learned(training, margins),
        *through_what(inputs),
        _unknown(training),
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


def _hardly_learned(training: Training, margins: Mapping[Split, float]) -> str:
    """Says so where there is little to explain."""
    learned = margins.get("train", _LITTLE)
    if not learned < _LITTLE:
        return ""
    steps = max((score.step for score in training.probes), default=0)
    changes = [
        f"{number(margin, 2, sign=True)} nats {_WHERE[split]}" for split, margin in margins.items()
    ]
    return (
        "It hardly learned the preference: the margin, chosen minus rejected, changed by "
        f"{join(changes)}. Train at a higher rate or longer (preference.steps"
        f"{steps_until(_LITTLE, learned, steps)})."
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
    parts = [
        f"{(own < 0).sum()} of {len(own)} {which}{SPLITS[split]} pairs"
        for split, own in changes.items()
    ]
    ways: dict[str, list[str]] = {}
    for split, own in changes.items():
        mean = mean_interval(own)
        few = ", of too few pairs to decide" if mean.n < LEAST_COUNT else ""
        where = f"{_WHERE[split]} ({with_interval(mean)}{few}{_without_one(own)})"
        ways.setdefault(_way(mean), []).append(where)
    went = [f"{way} {join(where)}" for way, where in ways.items()]
    fell = f"Under {name} the chosen answer fell on {join(parts)}"
    return f"{fell}; on average, in nats, it {join(went)}."


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
    if not clear(mean) or mean.n < LEAST_COUNT:
        return "did not clearly change"
    return "rose" if mean.mean > 0 else "fell"


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
