"""A plugin of pytest: shapes in the annotations of some rooms are checked as they are called.

Before anything of the library is imported, jaxtyping's hook is set to hand the rooms' functions to
`check_shapes`. `addopts` in pyproject.toml names the plugin; `-p no:tests.shapes` leaves it out.

jaxtyping would wrap functions without shapes too, and would check every call: either makes the
force tests take twice as long. Here a test has the first `CHECKED_CALLS` calls of a function
checked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from inspect import isclass
from types import CodeType, FunctionType
from typing import Any, get_args, get_type_hints

import jaxtyping
import pytest
from jaxtyping import AbstractArray, install_import_hook, jaxtyped

# beartype looks at random items of lists. With the process's own generator it would move what a
# training draws, so it gets another one as it is imported.
_shared = random.getrandbits
random.getrandbits = random.Random(0).getrandbits
import beartype._check.code.codemain  # noqa: E402
from beartype import beartype  # noqa: E402

random.getrandbits = _shared

ROOMS = (
    "dynolab.data",
    "dynolab.forces",
    "dynolab.integrations",
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
    # The hook looks the decorator up there.
    jaxtyping.jaxtyped = lambda *, typechecker: partial(check_where_shaped, typechecker)


Definition = tuple[str, str, CodeType]
"""Module, name and code: functions within functions are made in every call of the outer one."""

CHECKED_CALLS = 3
CALLS: Counter[Definition] = Counter()
"""Calls in the running test that were checked."""


def pytest_runtest_logstart() -> None:
    """Every test begins to count anew."""
    CALLS.clear()


def check_where_shaped(typechecker: Callable[..., Any], target: Any) -> Any:
    """jaxtyping's decorator on functions and data classes with shapes; others stay as they are."""
    function = target.__init__ if isclass(target) else target
    if not isinstance(function, FunctionType) or not names_shapes(function):
        return target
    checked = check_first_calls(typechecker, function)
    if not isclass(target):
        return checked
    target.__init__ = checked  # type: ignore[misc]
    return target


def check_first_calls(
    typechecker: Callable[..., Any], function: FunctionType
) -> Callable[..., Any]:
    """A function whose first calls in a test are checked by jaxtyping."""
    definition = function.__module__, function.__qualname__, function.__code__
    checked: Callable[..., Any] | None = None

    @wraps(function)
    def sometimes_checked(*arguments: Any, **named: Any) -> Any:
        nonlocal checked
        if CALLS[definition] >= CHECKED_CALLS:
            return function(*arguments, **named)
        CALLS[definition] += 1
        if checked is None:
            checked = jaxtyped(function, typechecker=typechecker)
        return checked(*arguments, **named)

    return sometimes_checked


NAMES_SHAPES: dict[Definition, bool] = {}


def names_shapes(function: FunctionType) -> bool:
    """Whether an argument or the result has a shape."""
    # Data classes of like fields have equal code.
    definition = function.__module__, function.__qualname__, function.__code__
    if definition not in NAMES_SHAPES:
        hints = (resolved(hint, function) for hint in function.__annotations__.values())
        NAMES_SHAPES[definition] = any(map(has_shape, hints))
    return NAMES_SHAPES[definition]


def resolved(hint: object, function: FunctionType) -> object:
    """The type that an annotation names, or `Any` where its names are unknown, as in jaxtyping."""

    def probe() -> None: ...

    probe.__annotations__ = {"hint": hint}
    try:
        return get_type_hints(probe, function.__globals__, include_extras=True)["hint"]
    except Exception:
        return Any


def check_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """beartype, on the arguments and results that have a shape; mypy checks the other types."""
    shaped = {name: hint for name, hint in function.__annotations__.items() if has_shape(hint)}
    function.__annotations__ = shaped
    return beartype(function) if shaped else function


def has_shape(hint: object) -> bool:
    """Whether a type is an array of jaxtyping's with named axes, or made of one."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return hint.dim_str != "..."
    return any(map(has_shape, get_args(hint)))
