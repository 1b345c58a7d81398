"""What can be started from Prefect's interface: every flow of the catalogue, by a form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, create_model

from flows import catalogue
from flows.catalogue import Command
from flows.forms.base import STUDIES, Form
from flows.forms.chapters import (
    ClassificationForm,
    SimplicityForm,
    SqueezingForm,
    SupervisionForm,
    TransferForm,
)
from flows.forms.families import (
    AuditForm,
    FileForm,
    ForcesForm,
    GrpoForm,
    PreferenceForm,
    ProbesForm,
    SftForm,
    StudyForm,
    SweepForm,
)
from flows.sweep_parameters import SweepParameters
from flows.train_parameters import TrainParameters, resolved_training, train_steps

Pool = Literal["cpu", "training"]
PARAMETER = "settings"
"""The one parameter of a deployed flow: its form."""

CPU: frozenset[str] = frozenset(["forces", "audit", "judge", "probes", "sweep"])
"""Flows that train nothing; a sweep waits for its trials, which would starve behind it."""


@dataclass(frozen=True)
class Deployed:
    """One entry of Prefect's list of deployments: `flow/name`."""

    name: str
    flow: str
    """Its module in `flows` and its function there."""

    kind: type[BaseModel]
    """The flow's parameters."""

    form: type[Form]
    first_file: str
    """Study file that the form names at first."""

    fixed: tuple[str, ...] = ()
    """Settings that make the deployment what it is, as key=value."""

    @property
    def pool(self) -> Pool:
        """The workers that run it."""
        return "cpu" if self.flow in CPU else "training"

    @property
    def schema(self) -> dict[str, Any]:
        """The form as Prefect's interface draws it, with the study files there are now."""
        fields: Any = {PARAMETER: (self.form, ...)}
        model: type[BaseModel] = create_model("Parameters", **fields)
        drawn = model.model_json_schema(ref_template="#/definitions/{model}")
        drawn["definitions"] = drawn.pop("$defs", {})
        form = drawn["definitions"][self.form.__name__]
        form["properties"]["study_file"]["enum"] = _files_of(self.flow)
        drawn["properties"][PARAMETER] |= {"position": 0, "title": "Settings"}
        return drawn

    def parameters(self, form: Form) -> BaseModel:
        """The flow's parameters that a filled form stands for; raises `ConfigError`."""
        return form.parameters(self.kind, self.fixed)


def commands() -> dict[str, Command[Any]]:
    """The flows that are made of stages, by name: the catalogue's, and trainings alone."""
    found = [one for one in vars(catalogue).values() if isinstance(one, Command)]
    return {one.name: one for one in [*found, TRAIN]}


def deployments() -> dict[str, Deployed]:
    """Every deployment by name: those with a form of their own, then the rest of the catalogue."""
    kinds: dict[str, type[BaseModel]] = {n: one.parameters for n, one in commands().items()}
    kinds["sweep"] = SweepParameters
    made = [
        Deployed(name, flow, kinds[flow], form, file, fixed)
        for name, (flow, form, file, fixed) in _FAMILIES.items()
    ]
    named = {one.flow for one in made}
    rest = [
        Deployed(name, name, kind, FileForm, (_files_of(name) or [f"{name}_builtin.yaml"])[0])
        for name, kind in kinds.items()
        if name not in named
    ]
    return {one.name: one for one in [*made, *rest]}


TRAIN = Command(
    "train",
    TrainParameters,
    lambda given: (train_steps(resolved_training(given)), {}),
    page="sft",
    file="summary.json",
)

_FAMILIES: dict[str, tuple[str, type[Form], str, tuple[str, ...]]] = {
    "study": ("study", StudyForm, "builtin.yaml", ()),
    "sft": ("train", SftForm, "builtin.yaml", ("until=sft",)),
    "preference": ("train", PreferenceForm, "builtin.yaml", ("until=preference",)),
    "grpo": ("grpo", GrpoForm, "grpo_builtin.yaml", ()),
    "probes": ("probes", ProbesForm, "probes_builtin.yaml", ()),
    "forces": ("forces", ForcesForm, "forces_builtin.yaml", ()),
    "audit": ("audit", AuditForm, "audit_builtin.yaml", ()),
    "sweep": ("sweep", SweepForm, "sweep_beta.yaml", ()),
    "classification": ("classification", ClassificationForm, "classification_builtin.yaml", ()),
    "squeezing": ("squeezing", SqueezingForm, "squeezing_builtin.yaml", ()),
    "simplicity": ("simplicity", SimplicityForm, "simplicity_builtin.yaml", ()),
    "supervision": ("supervision", SupervisionForm, "supervision_builtin.yaml", ()),
    "transfer": ("transfer", TransferForm, "transfer_builtin.yaml", ()),
}


def _files_of(flow: str) -> list[str]:
    """The study files of a flow: `<flow>_….yaml`; those of no other flow are a study's."""
    names = sorted(path.name for path in STUDIES.glob("*.yaml"))
    flows = [*commands(), "sweep"]
    owners = {
        name: next((one for one in flows if name.startswith(f"{one}_")), "study") for name in names
    }
    wanted = "study" if flow == "train" else flow
    return [name for name, owner in owners.items() if owner == wanted]
