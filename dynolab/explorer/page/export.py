"""What a reader takes from the view of a change: a file of pairs, and settings."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from dynolab.explorer.page import parts
from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import ObjectiveConfig, changed_settings

DOWNLOAD, FILE = "download", "file"


def filtered(study: Study, state: State) -> tuple[str, str]:
    """Name and content of the file of all pairs that are not left out: JSON lines."""
    remaining = [row for name, row in study.pairs.items() if name not in state.without]
    text = "".join(row.model_dump_json(exclude_none=True) + "\n" for row in remaining)
    return f"pairs-without-{len(state.without)}.jsonl", text


def settings(training: Training, state: State) -> dict[str, Any]:
    """What the change sets in a study file."""
    changed: dict[str, Any] = {}
    if state.without:
        changed["preference_filter"] = {"pairs": list(state.without)}
    if (objective := objective_of(training, state)) != training.objective:
        changed["preference"] = {"objective": changed_settings(objective)}
    return changed


def arms(training: Training, state: State) -> dict[str, Any]:
    """The training as it was and with the change, as arms of a mitigation file."""
    changed: dict[str, Any] = {"objective": changed_settings(objective_of(training, state))}
    if state.without:
        changed["filter"] = {"pairs": list(state.without)}
    label = "without" if state.without else "changed"
    return {"as-it-was": {"objective": changed_settings(training.objective)}, label: changed}


def objective_of(training: Training, state: State) -> ObjectiveConfig:
    """The objective that the change trains under; its dose is a factor on the one that it has."""
    objective, dose = state.objective_in(training), state.dose_in(training)
    if dose is None or not isinstance(objective, DPOConfig):
        return objective
    return objective.model_copy(update={"negative_dose": round(dose * objective.negative_dose, 6)})


def command(changes: Mapping[str, Mapping[str, Any]]) -> str:
    """Trains the study with these settings, under a name whose page replaces no other."""
    settings = {"name": "what-if"}
    for section, values in changes.items():
        settings |= {f"{section}.{key}": json.dumps(value) for key, value in values.items()}
    options = (shlex.quote(f"{name}={value}") for name, value in settings.items())
    return " ".join(["dynolab study FILE", *(f"--set {option}" for option in options)])


def _yaml(value: Mapping[str, Any]) -> str:
    """Settings as a study file has them: sections on lines of their own, the rest as JSON."""
    return "\n".join(
        f"{name}:\n"
        + "\n".join(
            f"  {key}: {json.dumps(setting, ensure_ascii=False)}"
            for key, setting in section.items()
        )
        for name, section in value.items()
    )


def taken(study: Study, training: Training, state: State) -> list[Any]:
    """What the change is as a file and as settings."""
    changes = settings(training, state)
    if not changes:
        return []
    remaining = len(study.pairs) - len(state.without)
    download = html.P(
        [html.Button(f"Download the {remaining} pairs", id=FILE), dcc.Download(id=DOWNLOAD)]
    )
    offered = [html.H3("Take it with you"), download if state.without else None]
    if training.stage != "preference":
        return [*offered, html.P("Settings are offered for preference trainings.")]
    return [
        *offered,
        parts.copied("in the study file", _yaml(changes)),
        parts.copied("as the command that trains it; FILE is the study file", command(changes)),
        parts.copied(
            "as runs of a mitigation file, which compares both over several seeds",
            _yaml({"arms": arms(training, state)}),
        ),
    ]
