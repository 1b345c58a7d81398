"""`dynolab reproduce --logs`: the papers' findings in trainings that others ran and logged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dynolab.errors import ConfigError
from dynolab.store import git_revision
from experiments.reproduce.logs import read_log
from flows.flow import FlowParameters, Name
from flows.parameters.parse import STUDIES, load_parameters
from tasks.runtime.system.secret_files import own_folder
from tasks.runtime.system.settings import Settings
from tasks.shared.result_table import of_verdicts, write_table

AUTHORS = STUDIES.parent / "logs" / "authors.yaml"
"""The built-in file: runs of the papers' authors."""

KEPT_KINDS = ("chosen", "rejected", "argmax")


class LoggedTraining(BaseModel):
    """One run: a folder of the logs, and what was trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    folder: Name = Field(description="Folder below that of --logs.")
    training: Literal["sft", "sft_extended", "sft_extended_half", "from-base", "dpo"] = Field(
        description="`dpo`: after SFT; `from-base`: DPO of the base model."
    )
    without: tuple[str, ...] = Field(
        (), description="Kinds to leave out, such as argmax, where their log is known to be wrong."
    )


class LogsParameters(FlowParameters):
    """Runs that others logged."""

    name: Name = Field("logs", description="Name of the page's file.")
    runs: dict[Name, LoggedTraining] = Field(description="Runs by name.", min_length=1)


def start_logs(
    folder: Path, file: Path | None, changes: Sequence[str], say: Callable[[str], None]
) -> None:
    """Reads the runs of a file from a folder of logs; writes their page and table.

    **Raises:** `ConfigError` for runs that cannot be read.
    """
    from dynolab.report.page import page_html, write_text
    from dynolab.statistics import mean_interval, share_interval
    from experiments.reproduce.page import changes_of_log, logs_page, verdicts_on

    parameters = load_parameters(LogsParameters, file or AUTHORS, changes)
    if missing := [
        run.folder for run in parameters.runs.values() if not (folder / run.folder).is_dir()
    ]:
        raise ConfigError(
            "--logs", str(folder), f"has no folder {missing[0]}; give a FILE that names its runs"
        )
    runs = {
        name: read_log(folder / run.folder, run.training, run.without)
        for name, run in parameters.runs.items()
    }
    reports = own_folder(Settings.from_environment().home) / "reports"
    reports.mkdir(exist_ok=True)
    page = logs_page(parameters.name, runs, parameters.as_yaml)
    write_text(reports / f"{parameters.name}.html", page_html(page))
    verdicts, estimates = of_verdicts(verdicts_on(runs))
    moved = {name: changes_of_log(run) for name, run in runs.items()}
    table = {
        "name": parameters.name,
        "seeds": None,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "stages": {n: {"key": run.digest, "code": git_revision()} for n, run in runs.items()},
        "verdicts": verdicts,
        "estimates": estimates
        | {
            f"changes/{name}/{kind}": mean_interval(changes_of_kind).as_dict()
            for name, kinds in moved.items()
            for kind, changes_of_kind in kinds.items()
        }
        | {
            f"fell/{name}": share_interval(
                int((changes_of_kind["chosen"] < 0).sum()), len(changes_of_kind["chosen"])
            ).as_dict()
            for name, changes_of_kind in moved.items()
            if len(changes_of_kind.get("chosen", ())) > 1
        },
        "numbers": {},
        "paths": {
            name: {
                kind: [round(float(mean), 2) for mean in np.nanmean(run.paths.logp[kind], 1)]
                for kind in KEPT_KINDS
                if kind in run.paths.logp
            }
            for name, run in runs.items()
        },
    }
    write_table(table, reports / f"{parameters.name}.json")
    for line in (*page.answer, f"report  {reports / parameters.name}.html"):
        say(str(line))
