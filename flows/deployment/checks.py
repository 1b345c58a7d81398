"""Checks filled forms for Prefect's server, before it takes them (`servers.form_checks`).

python -m flows.deployment.checks
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dynolab.errors import DynolabError
from flows.deployment.deployments import Deployment, deployments
from flows.sweep.parameters import SweepParameters
from flows.sweep.run import check_sweep
from tasks.runtime.servers.form_checks import SOCKET, socket_address
from tasks.runtime.system.settings import Settings

log = logging.getLogger(__name__)


def refusals(deployment: Deployment, fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Field and message of the setting that a filled form is refused for, if it is.

    The field is empty if the form has none for the setting.
    """
    try:
        form = deployment.form_model.model_validate(fields)
        parameters = deployment.parameters(form)
        if isinstance(parameters, SweepParameters):
            check_sweep(parameters)
    except ValidationError:
        return []  # of a field's type or limits, which the schema names
    except DynolabError as error:
        return [(_field_of(error, deployment, fields), str(error))]
    return []


def _field_of(error: DynolabError, deployment: Deployment, fields: Mapping[str, Any]) -> str:
    """The filled field that an error is about; empty if it may be another."""
    wrong, form = getattr(error, "field", ""), deployment.form_model
    settings = {**form.settings, **form.tried}
    named = [field for field in fields if settings.get(field, "?") in wrong]
    if not named and wrong.startswith("space"):  # the values to try, of which setting ever
        named = [field for field in fields if field in form.tried]
    return named[0] if len(named) == 1 else ""


def serve(home: Path) -> None:
    """Answers until the process is ended."""
    by_name = deployments()
    (home / SOCKET).unlink(missing_ok=True)
    with socket_address(home) as address, Listener(address, backlog=16) as listener:
        while True:
            try:
                with listener.accept() as connection:
                    name, fields = json.loads(connection.recv_bytes())
                    refused = refusals(by_name[name], fields) if name in by_name else []
                    connection.send_bytes(json.dumps(refused).encode())
            except Exception:  # who asks may end, and no form may end this
                log.exception("a form is taken without a check")


if __name__ == "__main__":
    serve(Settings.from_environment().home)
