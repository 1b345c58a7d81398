"""What is taken from the page: a filtered file, settings, commands, Python."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dash import dcc, html

from dynolab.explorer.page.state import State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training

DOWNLOAD, FILE = "download", "file"


def filtered(study: Study, state: State) -> tuple[str, str]:
    """Name and content of the file of all pairs that are not left out: JSON lines."""
    kept = [row for name, row in study.pairs.items() if name not in state.without]
    text = "".join(row.model_dump_json(exclude_none=True) + "\n" for row in kept)
    return f"pairs-without-{len(state.without)}.jsonl", text


def settings(training: Training, state: State) -> tuple[str, str]:
    """The change as a study file's settings, and as an arm of a mitigation file; YAML."""
    study, arm = [], []
    if state.without:
        pairs = json.dumps(list(state.without), ensure_ascii=False)
        study.append(f"preference_filter: {{pairs: {pairs}}}")
        arm.append(f"    filter: {{pairs: {pairs}}}")
    if changed := _objective(training, state):
        own = training.objective.model_dump(mode="json", exclude_defaults=True)
        whole = {"name": training.objective.name} | ({} if state.objective else own) | changed
        study.append(f"preference:\n  objective: {json.dumps(whole)}")
        arm.append(f"    objective: {json.dumps(whole)}")
    name = "without" if state.without else "changed"
    arms = "\n".join(["arms:", "  dpo: {}", f"  {name}:", *arm])
    return "\n".join(study), arms if arm else ""


def command(training: Training, state: State, program: str) -> str:
    """The change as a command on the study's own file."""
    changes = []
    if state.without:
        changes.append(f"preference_filter={json.dumps({'pairs': list(state.without)})}")
    for name, value in _objective(training, state).items():
        changes.append(f"preference.objective.{name}={value}")
    return " ".join(
        [f"{program} study FILE", *(f"--set {shlex.quote(change)}" for change in changes)]
    )


def map_command(study: Study, training: Training, step: int, pair: str, program: str) -> str:
    """The command that keeps a recorded step's map of a pair as a page."""
    changes = {
        "study": None,
        "data_result": study.data,
        "checkpoints": {"trained": {"result": training.result, "step": step}},
        "analysis.updating": "recorded",
        "analysis.pair_ids": [pair],
    }
    parts_of = (shlex.quote(f"{name}={json.dumps(value)}") for name, value in changes.items())
    return " ".join([f"{program} forces", *(f"--set {change}" for change in parts_of)])


def map_python(training: Training, answer: Any, step: int, pair: str) -> str:
    """The same map in Python."""
    return f"""\
from dynolab import Encoder, PolicyFunction, Result
from dynolab.forces import build_token_map

training = Result.open({training.result!r})
tokenizer, record = training.tokenizer(), training.record({step})
answer = Encoder(tokenizer, 2**31, "error").response(
    {answer.pair_id!r}, {answer.prompt!r}, {answer.response!r}
)
token_map = build_token_map(
    record, PolicyFunction(training.model()), tokenizer, stage={training.objective.name!r},
    updating_id={pair!r}, observed_id={answer.pair_id!r}, observed=answer,
)"""


def copied(label: str, text: str) -> Any:
    """A text to copy."""
    return html.Div(
        [
            html.Div(
                [html.Span(label, className="label"), dcc.Clipboard(content=text, title="copy")],
                className="copy",
            ),
            html.Pre(text, tabIndex=0),
        ]
    )


def taken(study: Study, training: Training, state: State, program: str) -> list[Any]:
    """What the change is as a file, settings and a command."""
    own, arms = settings(training, state)
    if not own:
        return []
    return [
        html.H3("Take it with you"),
        html.P(
            [
                html.Button(f"Download the {len(study.pairs) - len(state.without)} pairs", id=FILE),
                dcc.Download(id=DOWNLOAD),
            ]
        )
        if state.without
        else None,
        copied("in the study file", own),
        copied("as an arm, in a mitigation file", arms),
        copied("as a command", command(training, state, program)),
    ]


def _objective(training: Training, state: State) -> dict[str, Any]:
    """The objective's settings that are changed."""
    asked = state.under(training).objective
    objective = asked or training.objective
    changed: dict[str, Any] = {} if asked is None else {"name": asked.name}
    if state.beta is not None and "beta" in type(objective).model_fields:
        changed["beta"] = state.beta
    if state.dose != 1 and "negative_dose" in type(objective).model_fields:
        changed["negative_dose"] = state.dose
    return changed
