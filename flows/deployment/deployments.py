"""What Prefect offers: every flow with each of its forms, and the study files of each."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from prefect.states import Failed
from pydantic import BaseModel, ValidationError, create_model

from dynolab.errors import DynolabError
from flows.deployment.forms import FilledForm, derive_form
from flows.flow import Flow, Form
from flows.parameters.parse import STUDIES, read_settings, read_study
from flows.registry import DEPLOYED, FLOWS, load_flow
from flows.run import run_flow
from tasks.runtime.servers.form_checks import KEYWORD
from tasks.runtime.servers.run_names import PARAMETER

FIRST = ("model", "data_source", "objective", "beta", "steps")
"""Fields that a form begins with, after the study file: what people change most."""


@dataclass(frozen=True)
class Deployment:
    """A flow of the registry with one of its forms; Prefect shows it as `flow/name`."""

    name: str
    flow: Flow[Any]
    form: Form

    @property
    def first_file(self) -> str:
        """The form's default study file."""
        return self.form.file or f"{self.flow.name}_builtin.yaml"

    @cached_property
    def form_model(self) -> type[FilledForm]:
        """The model of the form that users fill in."""
        return derive_form(
            f"{self.name.title()}Form", self.form, self.flow.parameters, self.first_file
        )

    @property
    def description(self) -> str:
        """What it does, what its default file costs, and where its page is, in Markdown."""
        lines = read_study(STUDIES / self.first_file).split("\n")
        comment = takewhile(lambda line: line.startswith("# "), lines)
        return (
            f"{self.form.about}\n\nIts default settings, `{self.first_file}`: "
            f"{' '.join(line[2:] for line in comment)}\n\nThe run's artifacts lead to its page. It "
            "is also in the folder `reports` of Dynolab's home, under the run's `name`."
        )

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the form for Prefect's UI, with the current study files as choices."""
        fields: Any = {PARAMETER: (self.form_model, ...)}
        model: type[BaseModel] = create_model("Parameters", **fields)
        schema = model.model_json_schema(ref_template="#/definitions/{model}")
        schema["definitions"] = schema.pop("$defs")
        form = schema["definitions"][self.form_model.__name__]
        form[KEYWORD], shown = self.name, form["properties"]
        shown["study_file"]["enum"] = study_files(self.flow.name)
        rare = ("other_settings", "study_text", "fresh")
        first = ("study_file", *self.form.tried, *FIRST)
        order = sorted(shown, key=lambda name: (name in rare) - (name in first))
        for position, name in enumerate(order):
            shown[name]["position"] = position
        return schema

    def parameters(self, form: FilledForm) -> BaseModel:
        """Convert a filled form to the flow's parameters; raises `ConfigError`."""
        return form.parameters(self.flow.parameters, self.form.fixed)

    def run(self, fields: Mapping[str, Any]) -> Any:
        """Runs what a filled form describes, in a flow run: the same stages as the command.

        What cannot work is a failed state with a message: Prefect would put a long traceback first.
        """
        gc.enable()  # see tasks.runtime.flow_run_process
        try:
            form = self.form_model.model_validate(fields)
            return run_flow(self.flow, self.parameters(form), fresh=form.fresh)
        except (DynolabError, ValidationError) as error:
            logging.getLogger(__name__).error("%s", error)
            return Failed(message=str(error))


def deployments() -> dict[str, Deployment]:
    """Every deployment of the registry's flows, by name."""
    return {name: deployment(name) for name in DEPLOYED}


def deployment(name: str) -> Deployment:
    """One of `deployments`; imports its flow alone."""
    flow = load_flow(DEPLOYED[name])
    return Deployment(name, flow, flow.forms[name] if flow.forms else Form(FLOWS[flow.name]))


def study_files(flow: str) -> list[str]:
    """The study files of a flow; those of `train` are `study`'s."""
    name = "study" if flow == "train" else flow
    return sorted(path.name for path in STUDIES.glob("*.yaml") if built_in_flow(path) == name)


@cache
def built_in_flow(file: Path) -> str | None:
    """The flow that a file of deploy/studies is for; without a flow's name before its own, `study`.

    None: it is for a flow of a wing that is not here.
    """
    flow = flow_of(file.name, read_settings(read_study(file), file.name))
    return flow if flow == "study" or file.name.startswith(f"{flow}_") else None


def flow_of(file: str, settings: Mapping[str, Any]) -> str | None:
    """The flow whose name begins that of a study file, else the first that has its settings."""
    named = (flow for flow in FLOWS if file.startswith(f"{flow}_"))
    fitting = (
        flow for flow in FLOWS if settings.keys() <= load_flow(flow).parameters.model_fields.keys()
    )
    return next(named, None) or next(fitting, None)
