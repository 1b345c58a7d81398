"""Random states that our work leaves as they were, so that a training draws as without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

DEPTH = 8
"""How many objects deep generators are looked for, from a collator or a dataset."""

MOST_ITEMS = 64
"""Items of a list or dict that is looked into; longer ones hold rows."""

CALLED = ("__call__", "torch_call", "__getitem__", "__getitems__")
"""Methods by which a trainer reads rows."""

Restore = Callable[[], object]


@contextmanager
def undisturbed(*users: object) -> Iterator[None]:
    """Puts random states back at the end: of Python, numpy and torch, on the CPU and on all GPUs.

    **Arguments:** `users`: objects of the user's that run meanwhile, such as a collator or a
    dataset. The random generators that they hold are put back, too, and their attributes that are
    numbers or texts, such as counts; also those of what they call (functions, transforms).
    """
    with ExitStack() as stack:
        for restore in _global_states():
            stack.callback(restore)
        seen: set[int] = set()
        for user in users:
            for restore in _states_of(user, seen, DEPTH):
                stack.callback(restore)
        yield


def _global_states() -> Iterator[Restore]:
    yield partial(random.setstate, random.getstate())
    yield partial(np.random.set_state, np.random.get_state())
    yield partial(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        yield partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())


def _states_of(user: Any, seen: set[int], depth: int) -> Iterator[Restore]:
    """What puts back the generators and plain attributes of an object, and of those it holds."""
    if depth == 0 or id(user) in seen or _is_left_alone(user):
        return
    seen.add(id(user))
    if isinstance(user, random.Random):
        yield partial(user.setstate, user.getstate())
    elif isinstance(user, np.random.RandomState):
        yield partial(user.set_state, user.get_state())
    elif isinstance(user, np.random.Generator):
        bits = user.bit_generator
        yield partial(setattr, bits, "state", bits.state)
    elif isinstance(user, torch.Generator):
        yield partial(user.set_state, user.get_state())
    else:
        if not isinstance(user, FunctionType):
            yield _plain_attributes(_attributes_of(user))
        for part in _parts_of(user):
            yield from _states_of(part, seen, depth - 1)


def _is_left_alone(user: object) -> bool:
    """Whether an object is no part of reading rows: a library, a model, the trainer itself."""
    if isinstance(user, ModuleType | type | nn.Module | torch.Tensor):
        return True
    kinds = {kind.__name__ for kind in type(user).__mro__}
    return bool(kinds & {"Trainer", "PreTrainedTokenizerBase", "ProcessorMixin", "Accelerator"})


def _parts_of(user: Any) -> Iterator[object]:
    """What an object holds or, of a function, what it reads."""
    if isinstance(user, MethodType):
        yield from (user.__self__, user.__func__)
    elif isinstance(user, FunctionType):
        yield from (cell.cell_contents for cell in user.__closure__ or () if _is_filled(cell))
        yield from user.__defaults__ or ()
        # Names of its code are attributes, too; those of globals may be what it reads.
        names = (name for name in user.__code__.co_names if name in user.__globals__)
        yield from (user.__globals__[name] for name in names)
    elif isinstance(user, partial):
        yield from (user.func, *user.args, *user.keywords.values())
    elif isinstance(user, Mapping):
        yield from user.values() if len(user) <= MOST_ITEMS else ()
    elif isinstance(user, list | tuple):
        yield from user if len(user) <= MOST_ITEMS else ()
    else:
        yield from _attributes_of(user).values()
        yield from (getattr(type(user), name, None) for name in CALLED)


def _is_filled(cell: Any) -> bool:
    """Whether a closure's variable has a value yet."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _attributes_of(user: object) -> dict[str, Any]:
    attributes = getattr(user, "__dict__", None)
    return attributes if isinstance(attributes, dict) else {}


def _plain_attributes(attributes: dict[str, Any]) -> Restore:
    """Puts numbers and texts among attributes back, and takes new attributes away."""
    names = set(attributes)
    plain = {
        name: value
        for name, value in attributes.items()
        if value is None or isinstance(value, bool | int | float | str)
    }

    def restore() -> None:
        for name in set(attributes) - names:
            del attributes[name]
        attributes.update(plain)

    return restore
