"""The page of classifiers: forces between classes, and learning paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dynolab.chapters.classification.force_study import ForceFindings
from dynolab.chapters.classification.path_study import PathFindings
from dynolab.claims.class_forces import NETWORKS, assess_forces
from dynolab.claims.learning_paths import assess_paths
from dynolab.claims.verdict import Verdict
from dynolab.report.page import Tile
from dynolab.report.pages.chapter import Chapter
from dynolab.report.panels.class_forces import (
    busiest,
    influence_plate,
    kernel_plate,
    pull_plate,
    rank_plate,
    step_plate,
)
from dynolab.report.panels.learning_paths import epoch_plate, simplex_plate, zigzag_plate
from dynolab.report.style import Plate, number

_LEAD = (
    "A classifier is trained, and at every step it is asked what the step did to images that are "
    "only watched: Δ log p = −η A K G, exact to first order, with the kernel K of all pairs of "
    "images in full. So one sees which classes move together, how far the picture reaches, and "
    "where every training example’s prediction goes on its way to its label."
)
_SOURCE = (
    "Claims follow Ren & Sutherland (arXiv 2407.10490), Ren (arXiv 2509.19554, chapters 3 and 4) "
    "and Ren, Guo & Sutherland (ICLR 2022); intervals are over seeds."
)


def classification_chapter(
    forces: ForceFindings, paths: PathFindings | None, *, learning_rate: float, digits: bool
) -> Chapter:
    """What was measured, as a chapter."""
    of_forces = assess_forces(forces, learning_rate, digits=digits)
    return Chapter(
        title="How classifiers learn",
        lead=_LEAD,
        verdicts=(*of_forces, *(assess_paths(paths) if paths else ())),
        content=[
            *_force_plates(forces, learning_rate, of_forces),
            *(_path_plates(paths) if paths else ()),
        ],
        tiles=list(_tiles(forces, learning_rate)),
        source=_SOURCE,
    )


def _force_plates(
    forces: ForceFindings, rate: float, verdicts: Sequence[Verdict]
) -> Iterator[Plate]:
    """The figures, with the verdicts on what the first two are there to show."""
    network = forces.states[0].network
    own = [one for one in forces.states if (one.network, one.learning_rate) == (network, rate)]
    ranks = [one for one in forces.ranks if (one.network, one.learning_rate) == (network, rate)]
    by_name = {verdict.id: verdict for verdict in verdicts}
    names = ("four_nine", "four_nine_strongest", "ranks")
    *pairing, order = (by_name.get(f"{network}/{name}") for name in names)
    yield _judged(pull_plate(busiest(own)), pairing)
    yield _judged(kernel_plate(own, ranks), [order])
    yield rank_plate(forces.ranks, forces.diverged)
    yield step_plate(forces.states)
    plate = influence_plate([one for one in forces.influences if one.network == network])
    if plate is not None:
        yield plate


def _judged(plate: Plate, verdicts: Sequence[Verdict | None]) -> Plate:
    """A figure whose message ends with what became of claims."""
    told = [f"{one.claim}: {one.outcome}." for one in verdicts if one is not None]
    return replace(plate, message=" ".join([plate.message, *told]))


def _path_plates(paths: PathFindings) -> Iterator[Plate]:
    known = list(dict.fromkeys(one.data for one in paths.scores))
    made = [
        *(simplex_plate(paths.paths, data) for data in known),
        zigzag_plate(paths.scores),
        *(epoch_plate(paths.epochs, data) for data in known),
    ]
    yield from (plate for plate in made if plate is not None)


def _tiles(forces: ForceFindings, rate: float) -> Iterator[Tile]:
    main = [one for one in forces.states if one.learning_rate == rate]
    last = max(one.epoch for one in main)
    for network in dict.fromkeys(one.network for one in main):
        ends = [one.accuracy for one in main if (one.network, one.epoch) == (network, last)]
        title = NETWORKS[network]
        yield Tile(
            f"{title}: test accuracy",
            f"{100 * sum(ends) / len(ends):.1f}%",
            f"after {last} epochs at η = {number(rate)}, {len(ends)} seeds",
        )
