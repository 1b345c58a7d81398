"""The ledger of a finished training: which example moved which answer at each step → page."""

from __future__ import annotations

from pydantic import Field

from dynolab.errors import ConfigError
from flows.checkpoints import StudyFile, inputs_of, named_result, results_of
from flows.flow import FlowParameters, Form, Name, Plan, StagedFlow, Step
from tasks.ledger import LEDGER, LedgerConfig, LedgerJob
from tasks.pages import LEDGER_PAGE
from tasks.runtime.stage import Platform
from tasks.runtime.work import StageResult
from tasks.shared.page_helpers import PageConfig
from tasks.training import GROUP, PREFERENCE, SFT

TRAINED = "trained"
READS = {
    SFT.name: ("data", "model"),
    PREFERENCE.name: ("data", "model"),
    GROUP.name: ("data", "model", "prompts"),
}
"""Stages that train, with the inputs that a replay reads again."""


class LedgerParameters(FlowParameters):
    """Parameters of the ledger of a finished training."""

    name: Name = Field("ledger", description="Name of the run and of its page's file.")
    study: StudyFile = None
    trained: str = Field(
        description="The training: MLflow's tag `store.address`, or `<stage>/<key>` with the key's "
        "first digits, or the name of a step of `study`."
    )
    ledger: LedgerConfig = LedgerConfig()


def plan_ledger(parameters: LedgerParameters, platform: Platform) -> Plan:
    """Plans the ledger and its page; the inputs of the training are found by its lineage.

    **Raises** `ConfigError` for a result that is no training, or whose inputs are gone.
    """
    results = results_of(parameters.study, platform)
    trained = named_result(TRAINED, parameters.trained, results, platform)
    if trained.stage not in READS:
        raise ConfigError(
            TRAINED,
            parameters.trained,
            f"is a result of stage {trained.stage}; give one of {', '.join(READS)}",
        )
    existing = {TRAINED: trained, **inputs_of_training(parameters.trained, trained, platform)}
    manifest = platform.store.manifest(trained.address, trained.digest)
    job = LedgerJob.model_validate({**dict(parameters.ledger), "training": manifest.config})
    page = PageConfig(name=parameters.name, settings=parameters.as_yaml)
    steps = [
        Step("ledger", LEDGER, job, {name: name for name in existing}),
        Step("ledger-page", LEDGER_PAGE, page, {"ledger": "ledger", "data": "data"}),
    ]
    return Plan(parameters, steps, existing)


def inputs_of_training(
    reference: str, trained: StageResult, platform: Platform
) -> dict[str, StageResult]:
    """The results that the training read, by their names as its inputs."""
    parents = inputs_of(trained, platform)
    inputs = {}
    for name in READS[trained.stage]:
        if name not in parents:
            raise ConfigError(
                TRAINED, reference, "it watched no answers; set probe_every of the training"
            )
        result = parents[name]
        if result is None:
            raise ConfigError(
                TRAINED,
                reference,
                f"its input {name} is no longer in the store; run its flow again, then this one",
            )
        inputs[name] = result
    return inputs


FLOW = StagedFlow(
    "ledger",
    LedgerParameters,
    plan_ledger,
    page="ledger-page",
    file="ledger.html",
    forms={
        "ledger": Form(
            "Which example moved which answer, at each step of a finished training.",
            {
                "study": "study",
                "trained": "trained",
                "pairs": "ledger.pairs",
                "answers": "ledger.answers",
                "every": "ledger.every",
            },
        )
    },
)
