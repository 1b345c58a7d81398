"""A study in MLflow's pages: their addresses, its charts, and the description of its run.

MLflow opens on pages for calls of language models, unless an address names the other workflow. It
takes charts that were chosen beforehand from a tag of the experiment, whose end the address names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from tasks.runtime.track.runs import Run

WORKFLOW = "workflowType=machine_learning"
VIEW_TAG = "mlflow.sharedViewState."
DESCRIPTION_TAG = "mlflow.note.content"
FAILED = "**Failed:**"
"""Begins what a description says of a failure."""

PAGE_FOLDER = "report"
"""The folder of a page among the artifacts of the run that made it."""

SUMMARY = "summary"
"""Begins the key of Prefect's artifact that leads on from a run, which is listed first."""

_ARM = {"mode": "param", "groupByData": "arm"}
_IS_TRAINING = "metrics.`train/learning_rate` >= 0"

CHARTS = {
    "Answers": (
        ("probe/chosen/logp", "probe/rejected/logp", "probe/argmax/logp"),
        ("rollout/pass_at_1",),
        ("rollout/reward",),
        ("rollout/entropy",),
        ("squeeze/gap",),
        ("probe/argmax/outside_mass",),
    ),
    "Training": (
        ("train/loss",),
        ("train/chosen_logp", "train/rejected_logp"),
        ("train/margin",),
        ("train/accuracy",),
        ("train/grad_norm",),
    ),
}
"""Section → the metrics of each chart. MLflow shows those with values, and all others below."""


COLUMNS = (
    "metrics.`probe/chosen/logp`",
    "metrics.`squeeze/gap`",
    "metrics.`train/margin`",
    "params.`preference.objective.beta`",
    "params.`preference.objective.name`",
    "attributes.`Duration`",
)
"""Columns of the list of runs, where the address names a view."""

EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    VIEW_TAG + "runs": json.dumps({"selectedColumns": COLUMNS}),
}
"""Tags of every experiment: it holds trainings, and a view of its runs has these columns."""

FIRST_RUNS = f"#/experiments/1/runs?viewStateShareKey=runs&{WORKFLOW}"
"""Runs of the first experiment, which a server makes when it starts; 0 is MLflow's own."""


def run_page(run: Run, artifact: str = "") -> str:
    """Address of a run's page on its server, or of one of its artifacts there."""
    page = f"#/experiments/{run.experiment_id}/runs/{run.run_id}"
    return f"{page}/artifacts/{artifact}?{WORKFLOW}" if artifact else f"{page}?{WORKFLOW}"


def compare_page(run: Run, compared: Sequence[str]) -> str:
    """Address of MLflow's comparison of runs, by their ids, of a run's experiment."""
    # Both as JSON lists without blanks, as MLflow's pages write them.
    runs, experiments = (
        json.dumps(ids, separators=(",", ":")) for ids in (list(compared), [run.experiment_id])
    )
    return f"#/compare-runs?runs={quote(runs)}&experiments={quote(experiments)}&{WORKFLOW}"


def charts_page(run: Run) -> str:
    """Address of the charts of a run's trainings."""
    view = f"viewStateShareKey={run.run_id}&compareRunsMode=CHART"
    return f"#/experiments/{run.experiment_id}/runs?{view}&{WORKFLOW}"


def arms_page(run: Run) -> str:
    """Address of the table of a comparison's arms, means over their seeds."""
    return f"#/experiments/{run.experiment_id}/runs?viewStateShareKey={run.run_id}-arms&{WORKFLOW}"


def arms_of(run: Run, arms: Sequence[str], metrics: Sequence[str]) -> tuple[str, str]:
    """Tag of the experiment, key and value, that holds the table of a comparison's arms.

    `arms`: ids of their runs, which have parameters `arm` and `seed`. `metrics`: its columns.
    """
    columns = [f"metrics.`{metric}`" for metric in metrics] or list(COLUMNS[:3])
    grouped = {"aggregateFunction": "average", "groupByKeys": [_ARM]}
    state = {
        "searchFilter": _among(arms),
        "orderByKey": columns[0],
        "orderByAsc": False,
        "runsHiddenMode": "SHOW_ALL",
        "selectedColumns": columns,
        "groupBy": grouped,
    }
    return f"{VIEW_TAG}{run.run_id}-arms", json.dumps(state, ensure_ascii=False)


def _among(runs: Sequence[str]) -> str:
    listed = ", ".join(f"'{run}'" for run in runs)
    return f"attributes.run_id IN ({listed})"


def charts_of(run: Run, trainings: Sequence[str]) -> tuple[str, str]:
    """Tag of the experiment, key and value, that holds the charts of a run's trainings.

    `trainings`: ids of their runs, which other studies may have made; empty: those under the run.
    Sorted by name, runs stand in a flat list: under their parent they would be folded away.
    """
    numbers = count()
    child_trainings = f"tags.`mlflow.parentRunId` = '{run.run_id}' and {_IS_TRAINING}"
    charts: list[dict[str, Any]] = [
        {
            "uuid": f"chart-{next(numbers)}",
            "type": "LINE",
            "metricSectionId": section,
            "metricKey": metrics[0],
            "selectedMetricKeys": metrics,
            "xAxisKey": "step",
            "yAxisKey": "metric",
            "scaleType": "linear",
            "xAxisScaleType": "linear",
            "range": {},
            "useGlobalXaxisKey": True,
            "useGlobalLineSmoothing": True,
        }
        for section, section_charts in CHARTS.items()
        for metrics in section_charts
    ]
    state = {
        "searchFilter": _among(trainings) if trainings else child_trainings,
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
        "runsHiddenMode": "SHOW_ALL",
        "selectedColumns": COLUMNS,
        "isAccordionReordered": True,
        "compareRunCharts": charts,
        "compareRunSections": [
            {"uuid": section, "name": section, "display": True, "isReordered": True}
            for section in CHARTS
        ],
    }
    return VIEW_TAG + run.run_id, json.dumps(state, ensure_ascii=False)


def literal(text: str) -> str:
    """Markdown that shows a text as it is.

    Names of rows in it, which anybody may have written, make no link and no picture.
    """
    return re.sub(r"([\\`*_{}\[\]<>()|#!~&])", r"\\\1", text)


def description(run: Run, error: str, *, charts: bool, arms: bool, page: str | None) -> str:
    """Markdown that says why a run failed, and leads to `page`, a table of arms and charts."""
    links = {
        "Report": page,
        "Arms": arms_page(run) if arms else None,
        "Charts": charts_page(run) if charts else None,
    }
    linked = " · ".join(f"[{name}]({address})" for name, address in links.items() if address)
    return "\n\n".join(filter(None, [f"{FAILED} {literal(error)}" if error else "", linked]))
