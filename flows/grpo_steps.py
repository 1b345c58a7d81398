"""Which stages a comparison of arms has, in which order, and what each reads."""

from __future__ import annotations

import yaml

from dynolab.objectives.clipping import ClippedConfig
from flows.grpo_parameters import GrpoParameters
from tasks.answering import AnsweringConfig
from tasks.base import BASE
from tasks.data import DATA
from tasks.displacement import DISPLACEMENT, DisplacementJob
from tasks.evaluate import EVALUATE, EvaluationJob
from tasks.forces import FORCES
from tasks.group import GROUP, PROMPTS
from tasks.group_page import (
    GROUP_PAGE,
    GroupPageConfig,
    displacement_of,
    evaluation_of,
    start_of,
    training_of,
)
from tasks.runtime.chain import Step
from tasks.training import SFT


def grpo_steps(parameters: GrpoParameters) -> list[Step]:
    """The comparison's stages in order: what arms share, every arm, and the page.

    What seeds share too (given rows, given weights) has one key: the store has it once.
    """
    page = GroupPageConfig(
        name=parameters.name,
        seeds=parameters.seeds,
        arms=parameters.arms,
        baseline=parameters.baseline_label,
        epsilon=parameters.displacement.epsilon,
        update=parameters.displacement.update(parameters.training.optimizer),
        k=parameters.evaluation.k,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    shared = [step for seed in parameters.seeds for step in _shared(parameters, seed)]
    arms = [
        step
        for seed in parameters.seeds
        for label in parameters.arms
        for step in _arm(parameters, label, seed)
    ]
    measured = [start_of(seed) for seed in parameters.seeds]
    measured += [step.name for step in arms if step.stage is not FORCES]
    return [*shared, *arms, Step("grpo-page", GROUP_PAGE, page, {name: name for name in measured})]


def _shared(parameters: GrpoParameters, seed: int) -> list[Step]:
    """From prompts to the model that all arms start from, and what that is worth."""
    data, model = f"data-{seed}", _start(parameters, seed)
    rows, base = parameters.data_of(seed), parameters.base_of(seed)
    steps = [Step(f"prompts-{seed}", PROMPTS, rows)]
    training = parameters.training
    watched = bool(training.probe_every or training.record_steps)
    if parameters.sft is not None or base.source == "builtin" or watched:
        steps.append(Step(data, DATA, rows))
    reads = {"data": data} if base.source == "builtin" else {}
    steps.append(Step(f"base-{seed}", BASE, base, reads))
    if parameters.sft is not None:
        sft = parameters.sft.model_copy(update={"seed": seed})
        steps.append(Step(f"sft-{seed}", SFT, sft, {"data": data, "model": f"base-{seed}"}))
    evaluation = _evaluation(parameters, seed)
    return [
        *steps,
        Step(start_of(seed), EVALUATE, evaluation, {"prompts": f"prompts-{seed}", "model": model}),
    ]


def _arm(parameters: GrpoParameters, label: str, seed: int) -> list[Step]:
    """An arm's training, its evaluation, what its recorded steps did where there are any, and the
    test of one update where it is one on groups.
    """
    training = parameters.arm(label, seed)
    reads = {"prompts": f"prompts-{seed}", "model": _start(parameters, seed)}
    probed = {"data": f"data-{seed}"} if training.probe_every else {}
    trained = training_of(label, seed)
    steps = [
        Step(trained, GROUP, training, reads | probed),
        Step(
            evaluation_of(label, seed),
            EVALUATE,
            _evaluation(parameters, seed),
            {"prompts": f"prompts-{seed}", "model": trained, "start": start_of(seed)},
        ),
    ]
    if training.record_steps:
        watched = {"data": f"data-{seed}", "trained": trained}
        steps.append(Step(f"{trained}-forces", FORCES, parameters.forces, watched))
    if isinstance(training.objective, ClippedConfig):
        test = DisplacementJob(
            **dict(parameters.displacement),
            **AnsweringConfig.of(training),
            objective=training.objective,
            optimizer=training.optimizer,
            completions=training.completions,
        )
        steps.append(Step(displacement_of(label, seed), DISPLACEMENT, test, reads))
    return steps


def _evaluation(parameters: GrpoParameters, seed: int) -> EvaluationJob:
    asked = AnsweringConfig.of(parameters.training) | {"seed": seed}
    return EvaluationJob(**dict(parameters.evaluation), **asked)


def _start(parameters: GrpoParameters, seed: int) -> str:
    """The step whose model all arms of a seed start from."""
    return f"base-{seed}" if parameters.sft is None else f"sft-{seed}"
