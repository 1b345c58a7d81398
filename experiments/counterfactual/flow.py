"""Retrainings without some pairs, beside the forecasts of ledger and metagradient → page."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from dynolab.data.rows import ProbeRow, read_rows
from dynolab.data.source_checks import FilePath
from dynolab.errors import ConfigError
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from dynolab.training.config import DIFFERENTIATED, EngineConfig, TrainConfig
from experiments.counterfactual.results import Dropped
from experiments.counterfactual.stages import (
    COUNTERFACTUAL,
    METAGRADIENT,
    WHOLE,
    CounterfactualConfig,
    MetagradientConfig,
    reseeded,
)
from experiments.counterfactual.words import word_totals
from flows.checkpoints import results_of
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow, Step
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from tasks.runtime.stage import Platform
from tasks.training import PREFERENCE


class CounterfactualParameters(FlowParameters):
    """Parameters of retrainings without some examples."""

    name: Name = Field("counterfactual", description="Name of the run and of its page's file.")
    study: FilePath = Field(description="Study file whose steps have run, with a ledger.")
    groups: int = Field(50, ge=0, description="Random groups of examples; each is a training.")
    group_size: int = Field(6, ge=1, description="Examples of a random group.")
    blamed: int = Field(
        10, ge=0, description="Single answers; each has a training without those it blames."
    )
    blamed_size: int = Field(6, ge=1, description="Examples that pulled an answer down hardest.")
    seed: int = Field(0, ge=0, description="Of the random groups.")
    further_seeds: int = Field(
        2, ge=0, description="Further seeds of training, each with and without the blamed groups."
    )
    another_order: bool = Field(
        True,
        description="Train once more without each random group, with the examples in another "
        "order: how well a removal agrees with itself bounds what estimates can tell.",
    )
    metagradient: bool = Field(
        True,
        description="Differentiate the training, too, if its optimizer allows it; costs a "
        "Hessian-vector product for every step and watched answer.",
    )


def plan_removals(parameters: CounterfactualParameters, platform: Platform) -> Plan:
    """Plans one training as it was, its metagradient if wanted and its optimizer has one, one
    training without each group, and the page.

    **Raises** `ConfigError` for a study that has not run, or has no ledger of all its steps.
    """
    if not parameters.groups and not parameters.blamed:
        raise ConfigError("blamed", 0, "no pairs would be left out; set blamed or groups above 0")
    study = resolved(load_parameters(StudyParameters, Path(parameters.study)))
    if study.ledger is not None and study.ledger.every > 1:
        raise ConfigError(
            "ledger.every",
            study.ledger.every,
            "what an example did in the steps not drawn is unknown; set every: 1 in the study",
        )
    trained_on = "filter" if study.preference_filter else "data"
    finished = results_of(parameters.study, platform)
    if study.ledger is not None and (study.ledger.measures or study.ledger.rewards):
        raise ConfigError(
            "ledger.measures",
            study.ledger.measures,
            "a retraining is compared by its probes' log π; leave measures and rewards out",
        )
    needed = (study.start, "ledger")
    for name in (trained_on, *needed):
        if name not in finished:
            raise ConfigError(
                "study",
                parameters.study,
                f"its step {name} has not run; set ledger: {{}} in it and run dynolab study",
            )
    existing = {name: finished[name] for name in needed} | {"data": finished[trained_on]}
    ledger, data = (
        platform.store.folder(existing[name].address, existing[name].digest)
        for name in ("ledger", "data")
    )
    probes = list(read_rows(data / "probes.jsonl", ProbeRow))
    groups = dropped_groups(parameters, read_ledger(ledger, data), probes)
    training = retraining(study.preference)
    reads = {"data": "data", "model": study.start}
    steps = [Step(WHOLE, PREFERENCE, training, reads)]
    if parameters.metagradient:
        steps += _metagradient(study, training)
    shown = ["data", "ledger", *(step.name for step in steps), *(group.name for group in groups)]
    steps += [
        Step(
            group.name,
            PREFERENCE,
            training.model_copy(update={"without": group.examples}),
            reads,
        )
        for group in groups
    ]
    seeds = tuple(range(training.seed, training.seed + 1 + parameters.further_seeds))
    another_order = training.seed + 1 if parameters.another_order and parameters.groups else None
    # The whole training and those without the blamed groups, with other seeds.
    blamed = {group.name: group.examples for group in groups if group.blamed}
    reseeded_groups = {seed: {WHOLE: (), **blamed} for seed in seeds[1:]}
    if another_order is not None:
        drawn = {group.name: group.examples for group in groups if group.answer is None}
        reseeded_groups.setdefault(another_order, {WHOLE: ()}).update(drawn)
    again = [
        Step(
            reseeded(name, seed),
            PREFERENCE,
            training.model_copy(update={"seed": seed, "without": examples}),
            reads,
        )
        for seed, dropped in reseeded_groups.items()
        for name, examples in dropped.items()
    ]
    steps += again
    shown += [step.name for step in again]
    page = CounterfactualConfig(
        name=parameters.name,
        settings=parameters.as_yaml,
        groups=tuple(groups),
        seeds=seeds,
        another_order=another_order,
    )
    steps += [Step("counterfactual", COUNTERFACTUAL, page, {name: name for name in shown})]
    return Plan(parameters, steps, existing)


def _metagradient(study: StudyParameters, training: TrainConfig) -> list[Step]:
    differentiable = training.optimizer.name in DIFFERENTIATED and not training.chooses_dose
    if not differentiable or study.ledger is None:
        return []
    config = MetagradientConfig(
        training=training,
        batch_tokens=study.ledger.batch_tokens,
        disk_bytes=study.ledger.disk_bytes,
    )
    reads = {"data": "data", "model": study.start, "trained": WHOLE, "ledger": "ledger"}
    return [Step("metagradient", METAGRADIENT, config, reads)]


def dropped_groups(
    parameters: CounterfactualParameters, ledger: LedgerReader, probes: Sequence[ProbeRow]
) -> list[Dropped]:
    """Random groups, and for each single answer the group that the ledger blames for its fall,
    beside one of as many examples that words alone would blame."""
    size = min(parameters.group_size, len(ledger.examples))
    draw = random.Random(parameters.seed)
    groups = [
        Dropped(name=f"random-{number}", examples=tuple(sorted(draw.sample(ledger.examples, size))))
        for number in range(parameters.groups)
    ]
    words = word_totals(ledger, probes)
    singles = [account for account in ledger.accounts if account.row.single]
    for number, account in enumerate(singles[: parameters.blamed]):
        answer = account.row.name
        worst = ledger.pushers(account.lines)[: parameters.blamed_size]
        names = tuple(sorted(pusher.example for pusher in worst))
        groups.append(Dropped(name=f"blamed-{number}", examples=names, answer=answer))
        by_words = {example: words[answer, example] for example in ledger.examples}
        worst_by_words = sorted(by_words, key=by_words.__getitem__)[: parameters.blamed_size]
        names = tuple(sorted(worst_by_words))
        groups.append(
            Dropped(name=f"words-{number}", examples=names, answer=answer, blamed_by="words")
        )
    return groups


def retraining(training: TrainConfig) -> TrainConfig:
    """The training in one process, with nothing recorded, probed at its end."""
    return training.model_copy(
        update={
            "engine": EngineConfig(kind="plain", ranks=1, attention=training.engine.attention),
            "record_steps": (),
            "checkpoint_every": 0,
            "probe_every": training.steps,
            "alarm": None,
            "best": None,
            "ledger": None,
        }
    )


FLOW = StagedFlow(
    "counterfactual",
    CounterfactualParameters,
    plan_removals,
    page="counterfactual",
    file="counterfactual.html",
    forms={
        "counterfactual": Form(
            "Preference training without some pairs, compared with the ledger's forecast.",
            {
                "study": "study",
                "groups": "groups",
                "group_size": "group_size",
                "blamed": "blamed",
                "blamed_size": "blamed_size",
                "further_seeds": "further_seeds",
                "another_order": "another_order",
                "metagradient": "metagradient",
            },
        )
    },
)
