"""Filled forms, checked by the settings that they fill before Prefect takes them.

Prefect checks a form by its JSON schema, which knows types and limits alone. The schemas of
Dynolab's forms have one keyword more (`KEYWORD`): at it, the server asks a process that has loaded
the flows (`flows.deployment.checks`), by a socket in the home, and shows its answer at the field.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

KEYWORD = "dynolab-deployment"
"""Of a form's schema: the name of its deployment."""

SOCKET = "form-checks"
"""Name in the home."""

ANSWER_SECONDS = 5.0
"""The server waits so long; without an answer, a form is taken as Prefect found it."""


@contextmanager
def socket_address(home: Path) -> Iterator[str]:
    """An address of the home's socket, of any length: sockets take at most 107 characters."""
    folder = os.open(home, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def refusals(home: Path, deployment: str, form: dict[str, Any]) -> list[tuple[str, str]]:
    """Field and message of what the settings refuse; the field is empty if it is none of them."""
    try:
        with socket_address(home) as address, Client(address) as connection:
            connection.send_bytes(json.dumps([deployment, form]).encode())
            if not connection.poll(ANSWER_SECONDS):
                raise TimeoutError(f"no answer in {ANSWER_SECONDS:g} s")
            return [tuple(pair) for pair in json.loads(connection.recv_bytes())]
    except (OSError, EOFError) as error:  # no such process runs here, or it is stuck
        log.info("a form of %s is taken without a check: %s", deployment, error)
        return []


def check_forms(home: Path) -> None:
    """Makes Prefect's server, in this process, check forms by `KEYWORD`, too."""
    from jsonschema import ValidationError
    from prefect.utilities.schema_tools import validation

    def refused(
        _validator: Any, deployment: str, form: dict[str, Any], _schema: Any
    ) -> Iterator[ValidationError]:
        for field, message in refusals(home, deployment, form):
            yield ValidationError(message, path=[field] if field else [])

    validation._VALIDATOR.VALIDATORS[KEYWORD] = refused
