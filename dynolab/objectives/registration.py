"""What the platform knows of an objective: how its settings build it, and its names on pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from dynolab.objectives.base import Objective


@dataclass(frozen=True)
class Registration:
    """What builds an objective of its settings, and how pages and forms show it.

    `page_name` is its name in a sentence, `heading` that above a panel. `in_forms`: whether the
    forms that start a training offer it.
    """

    build: Callable[[Any], Objective]
    page_name: str
    heading: str
    in_forms: bool


REGISTERED: dict[str, Registration] = {}
"""Every objective by its name in settings; complete once `registry.py` is imported."""

Builder = TypeVar("Builder", bound=Callable[[Any], Objective])


def register(
    config: type[BaseModel], page_name: str, *, heading: str = "", in_forms: bool = True
) -> Callable[[Builder], Builder]:
    """Registers the decorated class, or function of the settings, as what builds an objective."""

    def keep(build: Builder) -> Builder:
        name = config.model_fields["name"].default
        REGISTERED[name] = Registration(build, page_name, heading or page_name, in_forms)
        return build

    return keep
