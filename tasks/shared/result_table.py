"""The numbers of a finished run in one file: verdicts, estimates with intervals, and their sources.

The file is written beside the page. Statements about a run can be checked against it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import read_rows
from dynolab.store import Store
from tasks.runtime.work import StageResult

_EXCLUDED = ("seconds",)
"""Metrics of how a run went, not of what it measured."""


def result_table(
    store: Store, page: str, parameters: Mapping[str, Any], results: Mapping[str, StageResult]
) -> dict[str, Any]:
    """The table of a run.

    **Arguments:** `page`: the step whose result holds the page; `results`: of all steps.

    **Returns:**

    - `name`, `seeds`, and `date`: of the newest result;
    - `stages`: every step's stage with its version and key, and the revision of the code that
      computed it;
    - `verdicts`: every claim's outcome;
    - `estimates`: `{mean, low, high, n}` by name: `<claim>/<quantity>`, a page's `means/…`,
      `differences/…`, `matched/…`, `changes/…` and `rates/<policy>/<judge>`;
    - `numbers`: every step's metrics as `<step>/<metric>`.
    """
    folder = store.folder(results[page].address, results[page].digest)
    claims = folder / "claims.jsonl"
    verdicts, estimates = of_verdicts(read_rows(claims, Verdict) if claims.exists() else ())
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        verdicts = {row["id"]: row["outcome"] for row in summary.get("verdicts", ())}
        estimates = dict(_estimates(summary))
    manifests = {step: store.manifest(r.address, r.digest) for step, r in results.items()}
    stages = {
        step: {"stage": m.stage, "version": m.version, "key": m.key, "code": m.git_revision}
        for step, m in manifests.items()
    }
    return {
        "name": parameters["name"],
        "seeds": parameters.get("seeds", parameters.get("seed")),
        "date": max(f"{m.created:%Y-%m-%d}" for m in manifests.values()),
        "stages": stages,
        "verdicts": verdicts,
        "estimates": estimates,
        "numbers": {
            f"{step}/{name}": value
            for step, result in results.items()
            for name, value in result.metrics.items()
            if name not in _EXCLUDED and isfinite(value)
        },
    }


def write_table(table: Mapping[str, Any], file: Path) -> None:
    """Writes the table as JSON with one entry per line, so that versions can be diffed."""
    parts = []
    for name, value in table.items():
        if isinstance(value, dict) and value:
            entries = (f"  {_json(key)}: {_json(entry)}" for key, entry in value.items())
            parts.append(f" {_json(name)}: {{\n" + ",\n".join(entries) + "\n }")
        else:
            parts.append(f" {_json(name)}: {_json(value)}")
    file.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


VerdictsAndEstimates = tuple[dict[str, str], dict[str, Any]]


def of_verdicts(claims: Iterable[Verdict]) -> VerdictsAndEstimates:
    """Claims' outcomes by id, and their figures as `<claim>/<quantity>`."""
    verdicts: dict[str, str] = {}
    estimates: dict[str, Any] = {}
    for verdict in claims:
        verdicts[verdict.id] = verdict.outcome
        for figure in verdict.measured:
            estimates[f"{verdict.id}/{figure.name}"] = figure.interval.as_dict()
    return verdicts, estimates


def _estimates(summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for row in summary.get("verdicts", ()):
        for name, interval in row["measured"].items():
            yield f"{row['id']}/{name}", interval
    for kind in ("changes", "means", "differences", "matched", "removals"):
        for name, interval in summary.get(kind, {}).items():
            yield f"{kind}/{name}", interval
    for row in summary.get("rates", ()):
        interval = {name: row[name] for name in ("mean", "low", "high", "n")}
        yield f"rates/{row['policy']}/{row['judge']}", interval
