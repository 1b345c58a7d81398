"""A plugin of pytest: shapes in the annotations of some rooms are checked in every call.

Before anything of the library is imported, jaxtyping's hook is set to hand the rooms' functions to
`check_shapes`. `addopts` in pyproject.toml names the plugin; `-p no:tests.shapes` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

ROOMS = (
    "dynolab.data",
    "dynolab.forces",
    "dynolab.likelihood",
    "dynolab.objectives",
    "dynolab.probes",
    "dynolab.rollouts",
    "dynolab.training",
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Sets jaxtyping's hook."""
    install_import_hook(ROOMS, f"{__name__}.{check_shapes.__name__}")


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype, on the arguments and results that have a shape; mypy checks the other types."""
    shaped = {name: hint for name, hint in function.__annotations__.items() if has_shape(hint)}
    function.__annotations__ = shaped
    return beartype(function) if shaped else function


def has_shape(hint: object) -> bool:
    """Whether a type is an array of jaxtyping's, or made of one."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(map(has_shape, get_args(hint)))
