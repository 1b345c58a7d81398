"""The page of classifiers: forces between classes, and learning paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dynolab.chapters.classification.force_claims import NETWORKS, assess_forces
from dynolab.chapters.classification.force_figures import (
    busiest,
    influence_figure,
    kernel_figure,
    pull_figure,
    rank_figure,
    step_figure,
)
from dynolab.chapters.classification.force_study import ForceFindings
from dynolab.chapters.classification.path_claims import assess_paths
from dynolab.chapters.classification.path_figures import epoch_figure, simplex_figure, zigzag_figure
from dynolab.chapters.classification.path_study import PathFindings
from dynolab.chapters.page import Chapter
from dynolab.claims.verdict import Verdict
from dynolab.report.figure import Figure
from dynolab.report.page import Tile
from dynolab.report.text import number

_LEAD = (
    "A classifier is trained, and for every step its effect on images that are only watched is "
    "computed: Δ log p = −η A K G, exact to first order, with the full kernel K of all pairs of "
    "images. This shows which classes move together, how far first order reaches, and how every "
    "training example’s prediction moves to its label."
)
_SOURCE = (
    "Claims follow Ren & Sutherland (arXiv 2407.10490), Ren (arXiv 2509.19554, chapters 3 and 4) "
    "and Ren, Guo & Sutherland (ICLR 2022); intervals are over seeds."
)


def classification_chapter(
    forces: ForceFindings, paths: PathFindings | None, *, learning_rate: float, digits: bool
) -> Chapter:
    """Makes a chapter of the measurements."""
    of_forces = assess_forces(forces, learning_rate, digits=digits)
    return Chapter(
        title="How classifiers learn",
        lead=_LEAD,
        verdicts=(*of_forces, *(assess_paths(paths) if paths else ())),
        content=[
            *_force_figures(forces, learning_rate, of_forces),
            *(_path_figures(paths) if paths else ()),
        ],
        tiles=list(_tiles(forces, learning_rate)),
        source=_SOURCE,
    )


def _force_figures(
    forces: ForceFindings, rate: float, verdicts: Sequence[Verdict]
) -> Iterator[Figure]:
    """The figures; the messages of the first two end with the verdicts on their claims."""
    network = forces.states[0].network
    own = [row for row in forces.states if (row.network, row.learning_rate) == (network, rate)]
    ranks = [row for row in forces.ranks if (row.network, row.learning_rate) == (network, rate)]
    by_name = {verdict.id: verdict for verdict in verdicts}
    names = ("four_nine", "four_nine_strongest", "ranks")
    *pairing, order = (by_name.get(f"{network}/{name}") for name in names)
    yield _with_verdicts(pull_figure(busiest(own)), pairing)
    yield _with_verdicts(kernel_figure(own, ranks), [order])
    yield rank_figure(forces.ranks, forces.diverged)
    yield step_figure(forces.states)
    influences = [row for row in forces.influences if row.network == network]
    if influences:
        yield influence_figure(influences)


def _with_verdicts(figure: Figure, verdicts: Sequence[Verdict | None]) -> Figure:
    """Adds the verdicts to the end of the figure's message."""
    outcomes = [f"{v.claim}: {v.outcome}." for v in verdicts if v is not None]
    return replace(figure, message=" ".join([figure.message, *outcomes]))


def _path_figures(paths: PathFindings) -> Iterator[Figure | None]:
    known = list(dict.fromkeys(row.data for row in paths.scores))
    yield from (simplex_figure(paths.paths, data) for data in known)
    yield zigzag_figure(paths.scores)
    yield from (epoch_figure(paths.epochs, data) for data in known)


def _tiles(forces: ForceFindings, rate: float) -> Iterator[Tile]:
    own = [row for row in forces.states if row.learning_rate == rate]
    last = max(row.epoch for row in own)
    for network in dict.fromkeys(row.network for row in own):
        ends = [row.accuracy for row in own if (row.network, row.epoch) == (network, last)]
        yield Tile(
            f"{NETWORKS[network]}: test accuracy",
            f"{100 * sum(ends) / len(ends):.1f}%",
            f"after {last} epochs at η = {number(rate)}, {len(ends)} seeds",
        )
