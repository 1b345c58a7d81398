"""Builds a probe set: data → untrained policy → rows of every chosen kind."""

from __future__ import annotations

from pydantic import Field, model_validator

from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError
from dynolab.probes.making.probe_set import PAIRS, ProbeSetConfig
from flows.flow import SOURCE_FIELDS, FlowParameters, Form, Name, Plan, StagedFlow, Step
from tasks.base import (
    BASE,
    BaseConfig,
    check_model_fits_data,
    resolve_base,
    seeded_base,
    seeded_data,
)
from tasks.data import DATA, PROBE_SET
from tasks.runtime.stage import Platform


class ProbesParameters(FlowParameters):
    """Parameters of a probe set."""

    name: Name = Field("probes", description="Name of the set: its run and its rows' file.")
    seed: int = Field(
        0,
        ge=0,
        description="Seed of data, weights and samples; use it in studies that watch the set, too.",
    )
    data: DataConfig = DataConfig()
    base: BaseConfig | None = Field(
        None, description="The untrained policy; null: none, if no kind needs it."
    )
    probe_set: ProbeSetConfig = ProbeSetConfig()

    @model_validator(mode="after")
    def _can_be_made(self) -> ProbesParameters:
        if self.base is None and self.probe_set.policy_kinds:
            raise ConfigError(
                "base",
                None,
                f"{self.probe_set.policy_kinds[0]} needs a policy: set base.source to a model "
                "folder or a Hub name, or leave the kind out",
            )
        if self.base is not None:
            check_model_fits_data(self.base, self.data)
        return self


def base_step(name: str, base: BaseConfig, *, data: str) -> Step:
    """The step that makes the untrained model; a built-in one is trained on rows of step `data`."""
    return Step(name, BASE, base, {"data": data} if base.source == "builtin" else {})


def watched_rows_and_base(
    data: DataConfig, base: BaseConfig, built: ProbeSetConfig | None, suffix: str = ""
) -> list[Step]:
    """The steps that make the rows, the untrained policy and, if set, the probe set.

    Later steps read `data`: the probe set's result, if there is one, else the rows.

    **Arguments:** `suffix`: end of the steps' names.
    """
    rows = f"{'data' if built is None else 'rows'}{suffix}"
    steps = [Step(rows, DATA, data), base_step(f"base{suffix}", base, data=rows)]
    if built is not None:
        reads = {"data": rows, "model": f"base{suffix}"}
        steps.append(Step(f"data{suffix}", PROBE_SET, with_pairs(built, data), reads))
    return steps


def with_pairs(built: ProbeSetConfig, data: DataConfig) -> ProbeSetConfig:
    """A probe set with its number of pairs."""
    return built.model_copy(update={"pairs": built.pairs or data.probe_pairs or PAIRS})


def plan(parameters: ProbesParameters, _: Platform) -> Plan:
    """Plans the data, the untrained policy, if set, and the probe set.

    **Raises** `ConfigError` for a missing source.
    """
    seed, base = parameters.seed, parameters.base
    resolved = parameters.model_copy(
        update={
            "data": resolve_data(seeded_data(parameters.data, seed)),
            "base": None if base is None else resolve_base(seeded_base(base, seed)),
            "probe_set": with_pairs(
                parameters.probe_set.model_copy(update={"seed": seed}), parameters.data
            ),
        }
    )
    steps, reads = [Step("data", DATA, resolved.data)], {"data": "data"}
    if resolved.base is not None:
        steps.append(base_step("base", resolved.base, data="data"))
        reads["model"] = "base"
    return Plan(resolved, [*steps, Step("probe-set", PROBE_SET, resolved.probe_set, reads)])


FLOW = StagedFlow(
    "probes",
    ProbesParameters,
    plan,
    page="probe-set",
    file="probes.jsonl",
    pool="cpu",
    forms={
        "probes": Form(
            "Answers that a study probes.",
            {
                **SOURCE_FIELDS,
                "seed": "seed",
                "pairs": "probe_set.pairs",
                "temperature": "probe_set.temperature",
                "max_new_tokens": "probe_set.max_new_tokens",
                "writer": "probe_set.writer.model",
            },
        )
    },
)
