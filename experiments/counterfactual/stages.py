"""Stages `metagradient` and `counterfactual`: effects of examples, derived and measured."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field

from dynolab.data.rows import ProbeRow, read_rows, read_value
from dynolab.forces.ledger.metagradient import Metagradient
from dynolab.forces.ledger.watched import functional_of
from dynolab.results.ledger import FunctionalRow
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from dynolab.results.study import ARGMAX, ProbeScore, TrainingSummary
from dynolab.statistics import Interval, lds, mean_interval, share_interval
from dynolab.training.config import TrainConfig
from experiments.counterfactual.results import (
    IN_NATS,
    Agreement,
    Dropped,
    Effect,
    Estimate,
    ExampleDerivative,
    Repeat,
)
from experiments.counterfactual.words import word_totals
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.page_helpers import PageConfig, facts_of, send_page
from tasks.shared.policies import adapter_folder, load_encoder, load_policy
from tasks.shared.replay import Replay, learned_steps


class MetagradientConfig(StageConfig):
    """A training that is differentiated."""

    training: TrainConfig
    batch_tokens: int | None = Field(ge=1, description="Padded tokens of one forward.")
    disk_bytes: int | None = Field(ge=1, description="As of a ledger.")


def differentiate(work: Work[MetagradientConfig]) -> dict[str, float]:
    """Reads inputs `data`, `model`, which the training began with, `trained`, and `ledger`, whose
    functionals are differentiated.

    Results: `derivatives.jsonl`.
    """

    config, trained = work.config, work.input_folder("trained")
    steps = read_value(trained / "summary.json", TrainingSummary).steps
    metrics = trained / "metrics.jsonl"
    encoder = load_encoder(trained / "model")
    rows = list(read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow))
    rows_of_ledger = read_rows(work.input_folder("ledger") / "functionals.jsonl", FunctionalRow)
    functionals = [functional_of(row, rows, encoder) for row in rows_of_ledger]
    policy = load_policy(trained / "model", adapter_folder(work, "trained"))
    replay = Replay(
        work=work,
        config=config.training,
        model=work.input_folder("model", "model"),
        examples=work.input_folder("data") / "train.jsonl",
        metrics=metrics,
    )
    backwards = Metagradient(policy, functionals, batch_tokens=config.batch_tokens)
    totals: dict[str, list[float]] = {}
    with work.shown(steps) as progress:
        for record in replay.backwards(
            learned_steps(metrics),
            replay.segment(steps, config.disk_bytes),
            lambda text: progress.update(progress.step, text),
        ):
            reached = backwards.enter(record)
            for example, nats in zip(reached.examples, reached.nats.tolist(), strict=True):
                so_far = totals.get(example, [0.0] * len(functionals))
                totals[example] = [a + b for a, b in zip(so_far, nats, strict=True)]
            progress.update(steps - reached.step, f"step {reached.step}")
    work.write_tables(
        derivatives=[
            ExampleDerivative(example=example, functional=functional.name, nats=nats)
            for example, nats_of_example in totals.items()
            for functional, nats in zip(functionals, nats_of_example, strict=True)
        ]
    )
    return work.log_metrics({"metagradient/examples": float(len(totals))})


METAGRADIENT = Stage(
    "metagradient", 2, differentiate, operational=frozenset({"disk_bytes", "batch_tokens"})
)
"""`disk_bytes` decides how often training is run again, not what comes of it."""


WHOLE = "whole"

Totals = Mapping[tuple[str, str], float]
"""What each example is said to have done to each functional, by both names, in nats."""


class CounterfactualConfig(PageConfig):
    """Which retraining went without which examples."""

    groups: tuple[Dropped, ...] = Field(description="Each is the name of an input, a training.")
    seeds: tuple[int, ...] = Field(
        description="Of the trainings; the first is that of the ledger's. With the others there "
        "are a whole training and one without each blamed group."
    )
    another_order: int | None = Field(
        description="Seed of a whole training, and one without each random group, with the "
        "examples in another order; None: there are none."
    )


def reseeded(name: str, seed: int) -> str:
    """The input of a training with another seed."""
    return f"{name}-seed-{seed}"


def compare_retrainings(work: Work[CounterfactualConfig]) -> dict[str, float]:
    """Reads inputs `data`, `ledger`, `whole`, one training for every group, and `metagradient` of
    a training that has one.

    Results: `effects.jsonl`, `repeats.jsonl`, `agreement.jsonl`, `counterfactual.html` and
    `figures/`.
    """
    from experiments.counterfactual.page import write_counterfactual_page

    config = work.config
    ledger = read_ledger(work.input_folder("ledger"), work.input_folder("data"))
    estimates = estimates_of(work, ledger)
    with work.shown(len(config.groups)) as progress:
        ends_with_all = ends(work, WHOLE, ledger)
        seed = config.another_order
        reordered = None if seed is None else ends(work, reseeded(WHOLE, seed), ledger)
        effects: list[Effect] = []
        for number, group in enumerate(config.groups, start=1):
            measured = less(ends(work, group.name, ledger), ends_with_all)
            forecasts = {
                estimate: without_lines_of(group, totals, list(ends_with_all))
                for estimate, totals in estimates.items()
            }
            if group.answer is None and seed is not None and reordered is not None:
                again = ends(work, reseeded(group.name, seed), ledger)
                forecasts["another order"] = less(again, reordered)
            for estimate, predicted in forecasts.items():
                for name in ends_with_all:
                    effect = Effect(
                        group=group.name,
                        functional=name,
                        estimate=estimate,
                        predicted=predicted[name],
                        measured=measured[name],
                    )
                    effects.append(effect)
            progress.update(number, group.name)
    repeats = repeats_of(work, ledger, effects)
    agreements = agree(effects, config.groups, repeats)
    removals = compared_removals(effects, config.groups)
    work.write_tables(effects=effects, repeats=repeats, agreement=agreements)
    write_counterfactual_page(
        effects,
        config.groups,
        agreements,
        repeats,
        removals,
        name=config.name,
        settings=config.settings,
        stages=facts_of(work.inputs),
        folder=work.output,
    )
    send_page(work)
    figures = {
        f"counterfactual/{agreement.estimate}/{name}": float(value)
        for agreement in agreements
        for name, value in agreement
        if name != "estimate" and value is not None
    }
    for name, interval in removals.items():
        figures[f"counterfactual/{name}"] = interval.mean
        figures[f"counterfactual/{name}_low"] = interval.low
        figures[f"counterfactual/{name}_high"] = interval.high
    return work.log_metrics(
        {name: value for name, value in figures.items() if not math.isnan(value)}
    )


def estimates_of(work: Work[CounterfactualConfig], ledger: LedgerReader) -> dict[Estimate, Totals]:
    """What every estimate but that of another order says that each example did."""
    totals: dict[Estimate, Totals] = {
        "ledger": {
            (account.row.name, example): float(nats)
            for account in ledger.accounts
            for example, nats in zip(ledger.examples, ledger.by_example(account.lines), strict=True)
        }
    }
    if "metagradient" in work.inputs:
        file = work.input_folder("metagradient") / "derivatives.jsonl"
        totals["metagradient"] = {
            (row.functional, row.example): row.nats for row in read_rows(file, ExampleDerivative)
        }
    probes = list(read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow))
    totals["words"] = word_totals(ledger, probes)
    draw = random.Random(work.config.seeds[0])
    totals["random"] = {names: draw.gauss() for names in totals["ledger"]}
    return totals


def without_lines_of(
    group: Dropped, totals: Totals, functionals: Sequence[str]
) -> dict[str, float]:
    """What an estimate says that dropping a group does to each functional, by its name, in nats."""
    return {name: -sum(totals[name, example] for example in group.examples) for name in functionals}


def less(values: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """The differences of every functional, by its name, in nats."""
    return {name: value - others[name] for name, value in values.items()}


def ends(work: Work[CounterfactualConfig], name: str, ledger: LedgerReader) -> dict[str, float]:
    """Every functional at the end of a training, from its last probe."""
    scores = list(read_rows(work.input_folder(name) / "probes.jsonl", ProbeScore))
    last = max(score.step for score in scores)
    last_scores = {(str(s.split), s.kind, s.pair_id): s for s in scores if s.step == last}
    return {account.row.name: _value(account.row, last_scores) for account in ledger.accounts}


def _value(row: FunctionalRow, last_scores: Mapping[tuple[str, str, str], ProbeScore]) -> float:
    kind = "chosen" if row.kind == ARGMAX else row.kind
    scores = [last_scores[row.split, kind, pair] for pair in row.pairs]
    values = [s.argmax_logp if row.kind == ARGMAX else s.logp for s in scores]
    return float(np.mean([value for value in values if value is not None]))


def repeats_of(
    work: Work[CounterfactualConfig], ledger: LedgerReader, effects: Sequence[Effect]
) -> list[Repeat]:
    """What dropping each blamed group did to its answer, under every seed."""
    first, *others = work.config.seeds
    measured = {(effect.group, effect.functional): effect.measured for effect in effects}
    blamed = {
        group.name: group.answer
        for group in work.config.groups
        if group.blamed and group.answer is not None
    }
    repeats = [
        Repeat(group=group, functional=answer, seed=first, measured=measured[group, answer])
        for group, answer in blamed.items()
    ]
    for seed in others:
        with_all = ends(work, reseeded(WHOLE, seed), ledger)
        for group, answer in blamed.items():
            change = ends(work, reseeded(group, seed), ledger)[answer] - with_all[answer]
            repeats.append(Repeat(group=group, functional=answer, seed=seed, measured=change))
    return repeats


SIGNED = ("ledger", "metagradient", "words")
"""The estimates that forecast the effects of blamed groups."""


def compared_removals(effects: Sequence[Effect], groups: Sequence[Dropped]) -> dict[str, Interval]:
    """What blamed groups did to their answers beyond other groups of as many examples, in nats:
    the mean over the answers, with its interval over them.

    `ledger over random`, `words over random`: less the mean over the random groups on the same
    answer, which is what any smaller set of examples does; `ledger over words`.
    """
    measured = {(effect.group, effect.functional): effect.measured for effect in effects}
    random_groups = [group.name for group in groups if group.answer is None]
    by_answer: dict[str, dict[str, float]] = {"ledger": {}, "words": {}, "random": {}}
    for group in groups:
        if group.answer is not None:
            by_answer[group.blamed_by][group.answer] = measured[group.name, group.answer]
            controls = [measured[name, group.answer] for name in random_groups]
            by_answer["random"][group.answer] = float(np.mean(controls)) if controls else math.nan
    differences = {}
    for first, second in (("ledger", "random"), ("words", "random"), ("ledger", "words")):
        answers = by_answer[first].keys() & by_answer[second].keys()
        changes = [by_answer[first][answer] - by_answer[second][answer] for answer in answers]
        differences[f"{first} over {second}"] = mean_interval(changes)
    return differences


def agree(
    effects: Sequence[Effect], groups: Sequence[Dropped], repeats: Sequence[Repeat]
) -> list[Agreement]:
    """Of every estimate: LDS and error over the random groups, and the blamed groups' signs."""
    estimates = dict.fromkeys(effect.estimate for effect in effects)
    scores = {estimate: random_groups_score(estimate, effects, groups) for estimate in estimates}
    ceiling = scores["another order"][0] if "another order" in scores else math.nan
    agreements = []
    for estimate, (score, low, high, error) in scores.items():
        predicted = {
            (effect.group, effect.functional): effect.predicted
            for effect in effects
            if effect.estimate == estimate
        }
        share = signs_of_blamed_groups(predicted, repeats if estimate in SIGNED else [])
        agreements.append(
            Agreement(
                estimate=estimate,
                groups=sum(group.answer is None for group in groups),
                lds=_finite(score),
                lds_low=_finite(low),
                lds_high=_finite(high),
                of_ceiling=_finite(score / ceiling),
                error=_finite(error) if estimate in IN_NATS else None,
                blamed=share.n,
                seeds=len({repeat.seed for repeat in repeats}) or 1,
                same_sign=_finite(share.mean),
                same_sign_low=_finite(share.low),
                same_sign_high=_finite(share.high),
            )
        )
    return agreements


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def random_groups_score(
    estimate: Estimate, effects: Sequence[Effect], groups: Sequence[Dropped]
) -> tuple[float, float, float, float]:
    """LDS with its interval, and relative error, of an estimate over the random groups."""
    random_groups = [group.name for group in groups if group.answer is None]
    of_estimate = {
        (effect.functional, effect.group): effect
        for effect in effects
        if effect.estimate == estimate
    }
    functionals = list(dict.fromkeys(effect.functional for effect in effects))
    shape = len(functionals), len(random_groups)
    predicted, measured = np.empty(shape), np.empty(shape)
    for row, functional in enumerate(functionals):
        for column, group in enumerate(random_groups):
            predicted[row, column] = of_estimate[functional, group].predicted
            measured[row, column] = of_estimate[functional, group].measured
    size = np.linalg.norm(measured)
    error = float(np.linalg.norm(predicted - measured) / size) if size else math.nan
    return *lds(predicted, measured), error


def signs_of_blamed_groups(
    predicted: Mapping[tuple[str, str], float], repeats: Sequence[Repeat]
) -> Interval:
    """Share of the blamed groups whose removal moved their answer as predicted, over seeds; an
    answer counts once."""
    hits = sum(
        predicted[repeat.group, repeat.functional] * repeat.measured > 0 for repeat in repeats
    )
    seeds = len({repeat.seed for repeat in repeats}) or 1
    return share_interval(hits / seeds, len({repeat.group for repeat in repeats}))


COUNTERFACTUAL = Stage("counterfactual", 7, compare_retrainings)
