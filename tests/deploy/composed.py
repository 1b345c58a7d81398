"""The Compose file as Compose reads it, as far as it goes without an engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tests.flows.lab import ROOT

FILE = ROOT / "docker" / "compose.yaml"
_VARIABLE = re.compile(
    r"(?<!\$)\$(?:\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}|(?P<bare>\w+))"
)


@dataclass(frozen=True)
class Variable:
    """`${name:-default}`, `${name:?said where it is missing}`, or without either."""

    name: str
    default: str | None
    required: bool


def variables(text: str) -> list[Variable]:
    """What a text asks of the environment."""
    return [
        Variable(
            found["name"] or found["bare"],
            found["rest"] if found["kind"] == "-" else None,
            found["kind"] == "?",
        )
        for found in _VARIABLE.finditer(text)
    ]


def interpolated(text: str, environment: Mapping[str, str]) -> str:
    """A value with its variables filled in."""

    def fill(found: re.Match[str]) -> str:
        (variable,) = variables(found[0])
        value = environment.get(variable.name) or variable.default
        assert value is not None, f"{variable.name} is not set"
        return value

    return _VARIABLE.sub(fill, text).replace("$$", "$")


def services() -> dict[str, dict[str, Any]]:
    """Name → service, with what `<<` merges in."""
    content = yaml.safe_load(FILE.read_text())
    return dict(content["services"])


def one_shots() -> set[str]:
    """Services that end: others wait for their good end."""
    return {
        name
        for service in services().values()
        for name, wanted in service.get("depends_on", {}).items()
        if wanted["condition"] == "service_completed_successfully"
    }


def is_checked(service: Mapping[str, Any]) -> bool:
    """Whether its health is asked for."""
    return "test" in service.get("healthcheck", {})
