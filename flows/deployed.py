"""The flows as their deployments run them: `flows.deployed.<name>` takes a form.

Prefect imports an entry by its dotted name; the flow is made for it from the deployment's form.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any

from prefect import Flow, flow
from prefect.runtime import flow_run

from flows.deployments import PARAMETER, Deployed, deployments
from flows.forms.base import Form

RUN_NAME_LETTERS = 60


def __getattr__(name: str) -> Flow[..., Any]:
    known = deployments()
    if name not in known:
        raise AttributeError(name)
    return deployed_flow(known[name])


def deployed_flow(one: Deployed) -> Flow[..., Any]:
    """The flow of a deployment: form → parameters → the stages that the command runs, too."""

    def start(**given: Form) -> Any:
        form = given[PARAMETER]
        body = import_module(f"flows.{one.flow}")
        run: Callable[..., Any] = getattr(body, one.flow).fn
        return run(one.parameters(form), fresh=form.fresh)

    signature = [Parameter(PARAMETER, Parameter.KEYWORD_ONLY, annotation=one.form)]
    vars(start)["__signature__"] = Signature(signature)
    start.__doc__ = one.form.__doc__
    return flow(name=one.flow, flow_run_name=_run_name)(start)


def _run_name() -> str:
    """The name that the person gave, else the study file's."""
    form = flow_run.parameters[PARAMETER]
    given = form if isinstance(form, dict) else form.model_dump()
    name = str(given.get("name") or given.get("study_file"))
    return name.removesuffix(".yaml")[:RUN_NAME_LETTERS]
