"""The view of what would be without the ticked pairs, or under another objective or scale.

The scale is that of the rejected gradient. What is taken from the page is a filtered file and
settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html

from dynolab.explorer.lines import Lines, lines_to_means
from dynolab.explorer.page import parts
from dynolab.explorer.page.state import BETAS, OBJECTIVES, State
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.explorer.watched import Answer
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.registry import ObjectiveConfig, changed_settings
from dynolab.report.figure import base_layout
from dynolab.report.style import (
    CHOSEN,
    MUTED,
    REJECTED,
    SPLITS,
    join,
    objective_name,
    plotly_text,
    style_of,
)

COLORS = {"train": CHOSEN, "heldout": REJECTED}
DOSES = (0.0, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5)


def listed(study: Study, state: State) -> Any:
    """The pairs that are ticked, and what else is changed."""
    training = study.training(state.training)
    trained = objective_name(training.objective.name)
    ticked = [
        html.Li(parts.link(f"{pair} ×", state.toggled(pair), title="take it back in"))
        for pair in state.without
    ]
    return [
        html.P("Left out", className="label"),
        html.Ul(ticked, className="ticked")
        if ticked
        else html.P("No pair yet: tick some in the other views.", className="quiet"),
        _doses(training, state),
        parts.choices(
            "objective",
            [
                (
                    objective_name(name) if name else f"as trained ({trained})",
                    state.link(objective=name, beta=None),
                    name == state.objective,
                )
                for name in OBJECTIVES
            ],
        ),
        _betas(training, state),
    ]


def _doses(training: Training, state: State) -> Any:
    chosen = state.dose_in(training)
    if chosen is None:
        objective = objective_name(state.objective_in(training).name)
        return html.P(
            f"{objective} has no scale of the rejected gradient to set.", className="quiet"
        )
    return parts.choices(
        "scale of the rejected gradient",
        [(f"{dose:g}", state.link(dose=dose), dose == chosen) for dose in DOSES],
    )


def _betas(training: Training, state: State) -> Any:
    """Every β that the objective may have; the one that it has without asking is among them."""
    trained_beta = getattr(
        state.model_copy(update={"beta": None}).objective_in(training), "beta", None
    )
    if trained_beta is None:
        return None
    chosen = state.beta or trained_beta
    return parts.choices(
        "β",
        [
            (f"{beta:g}", state.link(beta=None if beta == trained_beta else beta), beta == chosen)
            for beta in sorted({*BETAS, trained_beta, chosen})
        ],
    )


def shown(study: Study, state: State, dark: bool) -> Any:
    """What the change does to all answers, to first order."""
    training = study.training(state.training)
    _, error = training.computable()
    return [
        html.H2("What if"),
        *_over_training(training, state),
        *_at_recorded_steps(training, state, dark),
        parts.failed(error),
        *taken(study, training, state),
    ]


def _at_recorded_steps(training: Training, state: State, dark: bool) -> list[Any]:
    """What the change does at the recorded steps, on every answer."""
    computed = training.known_lines(state.kind, state.asked, state.changed(training))
    added_up = (
        "" if computed or len(state.without) < 2 else ", added up until all at once is computed"
    )
    computed = computed or training.known_lines(state.kind, state.asked, state.under(training))
    if computed is None:
        return []
    lines, instead = computed
    answers = training.answers[state.kind]
    moved = _would_be(lines, training, state, instead)
    steps = ", ".join(map(str, sorted(set(lines.step.tolist()))))
    absent = [pair for pair in state.without if pair not in lines.pairs]
    return [
        html.H3("At the recorded steps"),
        html.P(
            f"{join(absent)} {'is' if len(absent) == 1 else 'are'} in no batch of these steps: "
            "leaving it out changes nothing here.",
            className="message",
        )
        if absent
        else None,
        html.P(
            f"At the recorded steps {steps} alone: what each of them would have lacked without "
            f"the pairs that are left out{added_up}. The weights at every step stay what they "
            "were. A training shows the rest.",
            className="note",
        ),
        parts.table(
            ("answers", "fell", "would fall", "mean change", "would be"),
            [
                _summary(answers, lines.measured, moved, split, style_of(state.kind).label)
                for split in SPLITS
                if any(answer.row.split == split for answer in answers)
            ],
            "snnnn",
        ),
        parts.graph(_scatter(answers, lines.measured, moved), dark),
    ]


def _summary(
    answers: list[Answer], before: np.ndarray, after: np.ndarray, split: str, kind: str
) -> list[Any]:
    of_split = np.array([answer.row.split == split for answer in answers])
    count = int(of_split.sum())
    return [
        f"{kind}, {'training' if split == 'train' else 'held-out'}",
        f"{int((before[of_split] < 0).sum())} of {count}",
        f"{int((after[of_split] < 0).sum())} of {count}",
        parts.nats(float(before[of_split].mean())),
        parts.nats(float(after[of_split].mean())),
    ]


def _over_training(training: Training, state: State) -> list[Any]:
    """The same of the whole training, on what the ledger is of."""
    accounts = lines_to_means(training.ledger, singles=True)
    if accounts is None or state.under(training) != state.asked:
        return []
    rows, lines = accounts
    after = _would_be(lines, training, state)
    table = [
        [
            parts.account_name(row),
            parts.nats(float(measured)),
            parts.nats(float(would)),
            parts.nats(round(float(would - measured), 9) + 0.0),  # no rounding of sums, no −0
        ]
        for row, measured, would in zip(rows, lines.measured, after, strict=True)
    ]
    added_up = html.P(
        "The lines of the pairs that are left out, added up over all steps: leaving several out at "
        "once may do more or less.",
        className="note",
    )
    return [
        *parts.accounts(("change", "would be", "difference"), table),
        added_up if len(state.without) > 1 else None,
    ]


def _would_be(
    lines: Lines, training: Training, state: State, instead: Lines | None = None
) -> np.ndarray:
    """The change of every answer without the ticked pairs, and at the scale that is chosen."""
    dose = state.dose_in(training)
    return lines.what_if(state.without, 1.0 if dose is None else dose, instead)


def _scatter(answers: list[Answer], before: np.ndarray, after: np.ndarray) -> go.Figure:
    """Every answer: its change as it was, and as it would be."""
    figure = go.Figure()
    for split, label in SPLITS.items():
        places = [place for place, answer in enumerate(answers) if answer.row.split == split]
        figure.add_scatter(
            x=before[places],
            y=after[places],
            mode="markers",
            name=label,
            marker={"color": COLORS[split], "size": 7, "opacity": 0.75},
            text=[plotly_text(answers[place].row.pair_id) for place in places],
            hovertemplate="%{text}: %{x:+.3f} → %{y:+.3f} nats<extra></extra>",
        )
    low, high = float(min(before.min(), after.min())), float(max(before.max(), after.max()))
    line = {"width": 1, "color": MUTED}
    figure.update_layout(
        base_layout(
            420,
            margin={"l": 70, "r": 20, "t": 30, "b": 50},
            shapes=[{"type": "line", "x0": low, "x1": high, "y0": low, "y1": high, "line": line}],
            legend={"orientation": "h", "y": 1.08},
        )
    )
    figure.update_xaxes(title_text="change as trained (nats)")
    figure.update_yaxes(title_text="change as asked (nats)")
    return figure


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
    if (objective := _objective(training, state)) != training.objective:
        changed["preference"] = {"objective": changed_settings(objective)}
    return changed


def arms(training: Training, state: State) -> dict[str, Any]:
    """The training as it was and with the change, as arms of a mitigation file."""
    changed: dict[str, Any] = {"objective": changed_settings(_objective(training, state))}
    if state.without:
        changed["filter"] = {"pairs": list(state.without)}
    label = "without" if state.without else "changed"
    return {"as-it-was": {"objective": changed_settings(training.objective)}, label: changed}


def _objective(training: Training, state: State) -> ObjectiveConfig:
    """The objective that the change trains under; its dose is a factor on the one that it has."""
    objective, dose = state.objective_in(training), state.dose_in(training)
    if dose is None or not isinstance(objective, DPOConfig):
        return objective
    return objective.model_copy(update={"negative_dose": round(dose * objective.negative_dose, 6)})


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
        parts.copied(
            "as runs of a mitigation file, which compares both over several seeds",
            _yaml({"arms": arms(training, state)}),
        ),
    ]
