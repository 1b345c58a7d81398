"""A flow's place on the command line and in Prefect, as it is known before the flow is imported."""

from __future__ import annotations

from dataclasses import dataclass

START, FORCES, COMPARE, RESULTS = (
    "Start here",
    "Forces and answers",
    "Comparisons of trainings",
    "Results and servers",
)
"""Groups of commands, in the order of the help."""


@dataclass(frozen=True)
class Entry:
    """A flow of the registry.

    - `about`: what it does, on the command line and in Prefect.
    - `module`: where it is, as `FLOW`, or in `FLOWS` by name.
    - `group`: of its command, if that takes the options that most flows take. Others define their
      command themselves, and `train` has none: it starts only from Prefect.
    - `tag`: of its deployments, by which Prefect's list can be filtered.
    - `listed`: name in Prefect of the deployment that is called like the flow, if another: Prefect
      lists by name, ten on a page.
    - `forms`: their names, if there are several or it is not called like the flow.
    """

    about: str
    module: str
    group: str = ""
    tag: str = "study"
    listed: str = ""
    forms: tuple[str, ...] = ()
