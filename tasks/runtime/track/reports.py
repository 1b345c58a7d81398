"""Metrics of a training to W&B or trackio, by their own clients, which `DYNOLAB_REPORT_TO` names.

Each attempt at a training is a run there with all of its steps: the metrics of a resumed training
begin with those before the interruption.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import Any

from tasks.runtime.track.tail import MetricLine

log = logging.getLogger(__name__)

_LIMITS = {f"WANDB_{wait}_TIMEOUT": "30" for wait in ("LOGIN", "INIT", "FINISH")}
"""Seconds, unless the environment has others: W&B's own are 90, or have no end."""


class Report:
    """A training's run at one client; the first metrics import the client and begin the run.

    An error of the client ends no training: it is logged, and the client gets nothing more.

    **Arguments:** `run`: what the client's `init` takes: `project`, `name`, `config`.
    """

    def __init__(self, client: str, **run: Any) -> None:
        self._client, self._asked = client, run
        self._run: Any = None
        self._failed = False

    def __call__(self, line: MetricLine) -> None:
        """Send one line."""
        if not self._failed:
            self._try(self._send, line)

    def finish(self, *, failed: bool) -> None:
        """End the run when its metrics are sent; trackio keeps no status of runs."""
        if self._run is not None:
            status = {"exit_code": int(failed)} if self._client == "wandb" else {}
            self._try(self._run.finish, **status)

    def _send(self, line: MetricLine) -> None:
        if self._run is None:
            os.environ.update(_LIMITS | os.environ)
            self._run = import_module(self._client).init(**self._asked)
        self._run.log(line.metrics, step=line.step)

    def _try(self, call: Any, *values: Any, **more: Any) -> None:
        try:
            call(*values, **more)
        except Exception as error:
            self._failed = True
            log.warning("%s gets no more metrics of this training: %s", self._client, error)
