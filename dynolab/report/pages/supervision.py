"""The page of supervision under label noise, and of what is learned faster."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.claims.supervision import (
    ARMS,
    LABELS,
    assess_supervision,
    judged_noise,
    levels_of,
    supervision_table,
)
from dynolab.report.page import Html, Tile
from dynolab.report.pages.chapter import Chapter
from dynolab.report.panels.supervision import (
    accuracy_plate,
    adaptation_plate,
    belief_plate,
    detection_plate,
    speed_plate,
    speed_section,
)
from dynolab.report.style import Plate, join, points
from dynolab.results.supervision import (
    AdaptationRow,
    DetectionRow,
    SpeedRow,
    SupervisionRow,
)

_SOURCE = (
    "Claims follow Ren, Guo & Sutherland, Better Supervisory Signals (ICLR 2022), and Ren, "
    "Learning Dynamics of Deep Learning (arXiv 2509.19554), on adaptation Bengio et al., A "
    "Meta-Transfer Objective (arXiv 1901.10912); toys are choices of this project. Intervals are "
    "95% t-intervals over seeds, paired by seed."
)


def supervision_chapter(
    rows: Sequence[SupervisionRow],
    detections: Sequence[DetectionRow],
    speeds: Sequence[SpeedRow],
    adaptations: Sequence[AdaptationRow],
) -> Chapter:
    """The chapter; its name, settings and stages are for the stage to fill in."""
    made: tuple[Plate | Html | None, ...] = (
        accuracy_plate(rows),
        belief_plate(rows),
        detection_plate(detections),
        speed_plate(speeds),
        speed_section(speeds),
        adaptation_plate(adaptations),
    )
    return Chapter(
        name="",
        title="What to teach when labels are wrong",
        lead=_lead(rows),
        verdicts=assess_supervision(rows, detections, speeds, adaptations),
        content=[part for part in made if part is not None],
        tiles=_tiles(rows),
        source=_SOURCE,
    )


def _lead(rows: Sequence[SupervisionRow]) -> str:
    seeds, levels = sorted({row.seed for row in rows}), levels_of(rows)
    return (
        f"One network, {len(ARMS)} ways of teaching it, {len(levels)} shares of wrong labels "
        f"({join([f'{level:.0%}' for level in levels])}), {len(seeds)} seeds. A wrong label is one "
        "of the other classes; nobody is told which labels are wrong. Then, with every step "
        "accounted for: which kind of examples training lifts faster; and which factorisation of a "
        "joint distribution adapts faster after an intervention on the cause."
    )


def _tiles(rows: Sequence[SupervisionRow]) -> list[Tile]:
    noise = judged_noise(rows)
    table = supervision_table(rows, noise)
    found = []
    for arm in ("one_hot", "early_stopping", "filter_kd"):
        change = points(table.difference(arm, "one_hot", "accuracy"))
        found.append(
            Tile(
                f"{LABELS[arm]} at {noise:.0%} noise",
                f"{100 * table.mean(arm, 'accuracy').mean:.1f}%",
                "accuracy on clean test images" if arm == "one_hot" else f"{change} points",
            )
        )
    return found
