"""The rows behind a behaviour: ledger of a contrast → ranking → trainings without → page."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from pydantic import Field

from dynolab.data.source_checks import FilePath
from dynolab.errors import ConfigError
from dynolab.results.trace import Choice
from dynolab.rollouts.generator import SampleConfig
from dynolab.rollouts.rewards import RewardConfig, Rewards
from dynolab.store import hash_file
from flows.checkpoints import named_result, results_of
from flows.flow import Form, Name, Plan, StagedFlow, Step
from flows.ledger import TRAINED, LedgerParameters, inputs_of_training
from tasks.ledger import LEDGER, LedgerJob
from tasks.runtime.stage import Platform, Stage
from tasks.trace import (
    BEHAVIOUR,
    BEHAVIOUR_TEST,
    LEAVE_OUT,
    MODEL_OF,
    TRACE,
    TRACE_PAGE,
    BehaviourConfig,
    BehaviourTestConfig,
    LeaveOutConfig,
    TraceConfig,
    TracePageConfig,
    behaviour_rows,
)
from tasks.training import PREFERENCE, SFT

TRAININGS: dict[str, Stage] = {stage.name: stage for stage in (SFT, PREFERENCE)}


class TraceParameters(LedgerParameters):
    """Parameters of a trace."""

    name: Name = Field("trace", description="Name of the run and of its page's file.")
    behaviour: FilePath = Field(
        description="JSON lines with prompt, unwanted and wanted: continuations that show the "
        "behaviour, and others. Half of the prompts rank the rows, the others judge the ranking."
    )
    leave_out: int = Field(
        0,
        ge=0,
        description="Rows to train without: the first ones, as many that share most words, and as "
        "many random ones. 0: no training.",
    )
    rule: tuple[RewardConfig, ...] = Field(
        (), description="A reward of answers that show the behaviour: its rate on samples."
    )
    samples: int = Field(4, ge=1, description="Answers sampled to each prompt, with a rule.")
    sampling: SampleConfig = SampleConfig()


def plan_trace(parameters: TraceParameters, platform: Platform) -> Plan:
    """Plans the ledger of the contrast, the ranking, the trainings without rows, and the page.

    **Raises** `ConfigError` for a result that is no training on rows, and for a bad behaviour file.
    """
    file = Path(parameters.behaviour)
    behaviour_rows(file)
    if parameters.rule:
        Rewards(parameters.rule)
    results = results_of(parameters.study, platform)
    trained = named_result(TRAINED, parameters.trained, results, platform)
    if trained.stage not in TRAININGS:
        remedy = f"is a result of stage {trained.stage}; give one of {', '.join(TRAININGS)}"
        raise ConfigError(TRAINED, parameters.trained, remedy)
    existing = {TRAINED: trained, **inputs_of_training(parameters.trained, trained, platform)}
    training = platform.store.manifest(trained.address, trained.digest).config
    watched = {"measures": ("contrast",), "pairs": 10**6, "answers": 0, "heldout_answers": 0}
    job = LedgerJob.model_validate({**dict(parameters.ledger), **watched, "training": training})
    steps = [
        Step(
            "behaviour",
            BEHAVIOUR,
            BehaviourConfig(path=str(file), sha256=hash_file(file).sha256),
            {TRAINED: TRAINED},
        ),
        Step("ledger", LEDGER, job, {name: name for name in (*existing, "behaviour")}),
        Step(
            "trace",
            TRACE,
            TraceConfig(),
            {"ledger": "ledger", "data": "data", "behaviour": "behaviour"},
        ),
    ]
    models = {"start": "model", TRAINED: TRAINED}
    choices: tuple[Choice, ...] = get_args(Choice) if parameters.leave_out else ()
    stage = TRAININGS[trained.stage]
    for choice in choices:
        rows, name = f"rows-{choice}", f"without-{choice}"
        left_out = LeaveOutConfig(by=choice, rows=parameters.leave_out)
        again = job.training.model_copy(update={"keep_steps": False})
        steps += [
            Step(rows, LEAVE_OUT, left_out, {"data": "data", "trace": "trace"}),
            Step(name, stage, again, {"data": rows, "model": "model"}),
        ]
        models[choice] = name
    test = BehaviourTestConfig(
        rule=parameters.rule, samples=parameters.samples, sampling=parameters.sampling
    )
    shown = {"trace": "trace", "data": "data"}
    for label, model in models.items():
        reads = {"behaviour": "behaviour", "model": model}
        steps.append(Step(f"behaviour-{label}", BEHAVIOUR_TEST, test, reads))
        shown[f"{MODEL_OF}{label}"] = f"behaviour-{label}"
    page = TracePageConfig(
        name=parameters.name, settings=parameters.as_yaml, leave_out=parameters.leave_out
    )
    steps.append(Step("trace-page", TRACE_PAGE, page, shown))
    return Plan(parameters, steps, existing)


FLOW = StagedFlow(
    "trace",
    TraceParameters,
    plan_trace,
    page="trace-page",
    file="trace.html",
    forms={
        "trace": Form(
            "Which training rows made a model behave so.",
            {
                "study": "study",
                "trained": "trained",
                "behaviour": "behaviour",
                "leave_out": "leave_out",
                "every": "ledger.every",
            },
        )
    },
)
