"""What is wrong with a sweep is found before its first trial."""

from __future__ import annotations

from dynolab.errors import ConfigError
from flows.deployments import commands
from flows.parameters import as_change, load_parameters
from flows.sweep_parameters import SweepParameters


def check_sweep(parameters: SweepParameters) -> None:
    """Refuses, before any trial, a flow that is not there and settings that cannot work.

    Each value of the space is tried alone, beside the first value of the others.
    """
    known = commands()
    if parameters.flow not in known or parameters.flow == "sweep":
        there = ", ".join(name for name in known if name != "sweep")
        raise ConfigError("flow", parameters.flow, f"choose one of {there}")
    command = known[parameters.flow]
    first = {
        name: one.values[0] if one.values is not None else one.low
        for name, one in parameters.space.items()
    }
    for name, one in parameters.space.items():
        for value in one.values if one.values is not None else (one.low, one.high):
            changes = [as_change(key, given) for key, given in (first | {name: value}).items()]
            load_parameters(
                command.parameters, parameters.study_path, [*parameters.settings, *changes]
            )
