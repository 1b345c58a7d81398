"""Parameters of a study, and those with which it runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from dynolab.data.source_checks import FilePath
from dynolab.data.sources.load import DataConfig, resolve_data
from dynolab.errors import ConfigError, under_field
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import PAIR_OBJECTIVES, build_objective
from dynolab.probes.making.probe_set import ProbeSetConfig
from dynolab.training.config import TrainConfig
from flows.flow import FlowParameters, Name
from tasks.audit import AuditConfig, FilterConfig
from tasks.base import BaseConfig, check_model_fits_data, resolve_base, seeded_base, seeded_data
from tasks.forces import ForcesConfig
from tasks.kernel import KernelConfig
from tasks.ledger import LedgerConfig
from tasks.probe import ProbeConfig
from tasks.runtime.work import StageConfig
from tasks.study_squeezing import SqueezingConfig

Contrast = Literal["resampled", "flat_world"]


class ComparisonFiles(StageConfig):
    """Study files of comparisons; the report shows the findings of those that have run."""

    mitigation: FilePath | None = Field(
        None, description="Comparison of remedies against squeezing."
    )
    reproduction: FilePath | None = Field(None, description="Reproduction of the papers' findings.")


class StudyParameters(FlowParameters):
    """Parameters of a study."""

    name: Name = Field(
        "builtin", description="Name of the study: its parent run in MLflow, and its report's file."
    )
    seed: int = Field(0, ge=0, description="Seed of data, weights and batches.")
    data: DataConfig = DataConfig()
    base: BaseConfig = BaseConfig()
    probe_set: ProbeSetConfig | None = Field(
        None,
        description="Probe set to build; null: the data's own probes, or the file data.probes.",
    )
    sft: TrainConfig | None = Field(
        TrainConfig(),
        description="Finetuning before preference training; null: none, the base model is "
        "finetuned already.",
    )
    audit: AuditConfig | None = Field(
        AuditConfig(), description="Ranking of the pairs before preference training; null: none."
    )
    preference_filter: FilterConfig | None = Field(
        None, description="Leaves the pairs that the audit ranks worst out of preference training."
    )
    preference: TrainConfig = TrainConfig(objective=DPOConfig())
    probe: ProbeConfig = ProbeConfig()
    forces: ForcesConfig | None = Field(
        ForcesConfig(), description="Forces of the recorded steps; null: not measured."
    )
    kernel: KernelConfig | None = Field(
        KernelConfig(), description="How strongly answers are coupled; null: not measured."
    )
    ledger: LedgerConfig | None = Field(
        None, description="Ledger of all steps of preference training; null: none."
    )
    squeezing: SqueezingConfig | None = Field(
        SqueezingConfig(), description="Where rising probability went; null: not measured."
    )
    contrasts: tuple[Contrast, ...] = Field(
        (),
        description="The same preference training on data that should show no squeezing: rejected "
        "answers sampled once from the policy that it starts from (resampled), or answers without "
        "a preferred style (flat_world, for the built-in world).",
    )
    comparisons: ComparisonFiles = ComparisonFiles()

    @model_validator(mode="after")
    def _fits_together(self) -> StudyParameters:
        if "flat_world" in self.contrasts and not self.data.states_facts:
            raise ConfigError(
                "contrasts",
                "flat_world",
                "needs the built-in world of facts; leave it out for other data",
            )
        check_model_fits_data(self.base, self.data)
        if self.sft is not None and self.sft.objective.name == self.preference.objective.name:
            raise ConfigError(
                "preference.objective.name",
                self.preference.objective.name,
                "sft has the same objective, and a report names trainings by their objectives; "
                "choose another",
            )
        return self

    @property
    def start(self) -> str:
        """The step whose model preference training starts from."""
        return "base" if self.sft is None else "sft"

    @model_validator(mode="after")
    def _has_one_seed(self) -> StudyParameters:
        for name in ("probe_set", "sft", "preference"):
            section: Any = getattr(self, name)
            has_seed = section is not None and "seed" in section.model_fields_set
            if has_seed and section.seed != self.seed:
                raise ConfigError(
                    f"{name}.seed",
                    section.seed,
                    f"a study has one seed, {self.seed}; set `seed`, or leave this out",
                )
        return self

    @model_validator(mode="after")
    def _can_be_filtered(self) -> StudyParameters:
        with under_field("preference.objective.loss"):
            build_objective(self.preference.objective)  # a loss of one's own may not be one
        objective = self.preference.objective.name
        if (self.data.format == "unpaired") != (objective == "kto"):
            raise ConfigError(
                "data.format",
                self.data.format,
                f"does not fit {objective}: rows with labels (unpaired) are for kto, pairs for the "
                "others",
            )
        if self.preference_filter is not None and objective not in PAIR_OBJECTIVES:
            raise ConfigError(
                "preference_filter",
                self.preference_filter.by,
                f"needs a loss on pairs, which {objective} is not; leave it out",
            )
        if self.preference_filter and self.preference_filter.ranks and self.audit is None:
            raise ConfigError(
                "audit",
                None,
                "preference_filter reads its ranking; delete `audit: null`, or name the pairs "
                "(preference_filter.pairs)",
            )
        return self


def resolved(parameters: StudyParameters) -> StudyParameters:
    """Sets all seeds to the study's, and pins the sources to their current content.

    **Raises** `ConfigError` for a missing source.
    """
    seed, built = {"seed": parameters.seed}, parameters.probe_set
    return parameters.model_copy(
        update={
            "probe_set": None if built is None else built.model_copy(update=seed),
            "data": resolve_data(seeded_data(parameters.data, parameters.seed)),
            "base": resolve_base(seeded_base(parameters.base, parameters.seed)),
            "sft": None if parameters.sft is None else parameters.sft.model_copy(update=seed),
            "preference": parameters.preference.model_copy(update=seed),
        }
    )
