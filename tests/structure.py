"""Circles of imports: there are none, or `make lint` fails.

`python -m tests.structure` prints how many there are, and where. A circle is a set of modules of
which each imports the others, over others too; imports within functions and for types count.
"""

from __future__ import annotations

import sys
import tomllib

import grimp

from tests.budget import SETTINGS


def circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """The modules of each circle."""
    found = set()
    for module in graph.modules:
        imported = graph.find_upstream_modules(module)
        importing = graph.find_downstream_modules(module)
        if around := imported & importing:
            found.add(frozenset(around | {module}))
    return found


def main() -> None:
    """Print the count with its places; end with an error unless it is 0."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    packages = settings["tool"]["importlinter"]["root_packages"]
    places = {
        "circles": [" ".join(sorted(circle)) for circle in circles(grimp.build_graph(*packages))],
    }
    for name, where in places.items():
        print(f"{name:22}{len(where):8}", *where, sep="\n    ")
    if any(places.values()):
        sys.exit("Move what the modules of a circle need of each other into a module of its own.")


if __name__ == "__main__":
    main()
