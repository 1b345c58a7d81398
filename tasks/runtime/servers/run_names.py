"""Names of flow runs, from their forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PARAMETER = "settings"
"""The only parameter of a deployed flow: its form."""

LONGEST = 60
_TWO_WORDS = re.compile(r"[A-Za-z]+\d*-[A-Za-z]+\d*")


def run_name(name: str, form: Any, otherwise: str = "") -> str:
    """The run name that was typed, else the form's name, else the study file's and the run name.

    Prefect fills the field for the run name with two words, which somebody may have typed, too.

    **Arguments:** `form`: a flow's parameter; of other people's flows it may be anything.
    `otherwise`: in place of the study file, if the form names none.
    """
    if not _TWO_WORDS.fullmatch(name) or not isinstance(form, Mapping):
        return name
    file = Path(str(form.get("study_file") or otherwise)).stem
    return str(form.get("name") or (f"{file} ({name})" if file else name))[:LONGEST]


def name_runs() -> None:
    """Makes Prefect's server, in this process, name runs when they are made, not at their start."""
    from prefect.server.models import deployments, flow_runs
    from prefect.utilities.names import generate_slug

    create: Any = flow_runs.create_flow_run
    insert: Any = deployments._insert_scheduled_flow_runs

    async def create_named(*, flow_run: Any, **options: Any) -> Any:
        flow_run.name = run_name(flow_run.name, flow_run.parameters.get(PARAMETER))
        return await create(flow_run=flow_run, **options)

    async def insert_named(*, runs: list[dict[str, Any]], **options: Any) -> Any:
        for run in runs:
            run["name"] = run_name(generate_slug(2), run["parameters"].get(PARAMETER))
        return await insert(runs=runs, **options)

    flow_runs.create_flow_run = create_named
    deployments._insert_scheduled_flow_runs = insert_named
