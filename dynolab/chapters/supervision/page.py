"""The page of supervision under label noise, and of learning speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dynolab.chapters.inputs import SupervisionRows
from dynolab.chapters.page import Chapter
from dynolab.chapters.supervision.claims import (
    ARMS,
    LABELS,
    SCORES,
    assess_supervision,
    best_adaptation,
    detection,
    judged_noise,
    levels_of,
    speed_values,
    supervision_table,
)
from dynolab.chapters.supervision.rows import (
    AdaptationRow,
    Contrast,
    DetectionRow,
    Direction,
    SpeedRow,
    SupervisionRow,
)
from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.figure import Figure
from dynolab.report.lines import Line, LinePanel, line_plot
from dynolab.report.page import Section, Tile, section, table
from dynolab.report.text import join, points, with_interval
from dynolab.statistics import mean_interval

_SOURCE = (
    "Claims follow Ren, Guo & Sutherland, Better Supervisory Signals (ICLR 2022), and Ren, "
    "Learning Dynamics of Deep Learning (arXiv 2509.19554), on adaptation Bengio et al., A "
    "Meta-Transfer Objective (arXiv 1901.10912); toys are choices of this project. Intervals are "
    "95% t-intervals over seeds, paired by seed."
)
_BANDS = "Lines: means over seeds; bands: 95% t-intervals over seeds."
_NOISE = "share of wrong labels"
_PANELS: dict[Contrast, tuple[str, tuple[str, str]]] = {
    "clean-noisy": ("Digits, some labels wrong", ("clean", "noisy")),
    "coherent-contradictory": ("Pairs of near-equal inputs", ("coherent", "contradictory")),
}


def supervision_chapter(rows: SupervisionRows) -> Chapter:
    """Makes the chapter; the stage adds its name, settings and stages."""
    return Chapter(
        title="What to teach when labels are wrong",
        lead=_lead(rows.arms),
        verdicts=assess_supervision(rows.arms, rows.detections, rows.speeds, rows.adaptations),
        content=[
            accuracy_figure(rows.arms),
            belief_figure(rows.arms),
            detection_figure(rows.detections),
            speed_figure(rows.speeds),
            speed_section(rows.speeds),
            adaptation_figure(rows.adaptations),
        ],
        tiles=_tiles(rows.arms),
        source=_SOURCE,
    )


def _lead(rows: Sequence[SupervisionRow]) -> str:
    seeds, levels = sorted({row.seed for row in rows}), levels_of(rows)
    return (
        f"One network, {len(ARMS)} ways of teaching it, {len(levels)} shares of wrong labels "
        f"({join([f'{level:.0%}' for level in levels])}), {len(seeds)} seeds. A wrong label is one "
        "of the other classes; no arm knows which labels are wrong. Then, with every step "
        "accounted for: which kind of examples training raises faster; and which factorisation of "
        "a joint distribution adapts faster after an intervention on the cause."
    )


def _tiles(rows: Sequence[SupervisionRow]) -> list[Tile]:
    noise = judged_noise(rows)
    arms = supervision_table(rows, noise)
    tiles = []
    for arm in ("one_hot", "early_stopping", "filter_kd"):
        change = points(arms.difference(arm, "one_hot", "accuracy"))
        detail = "accuracy on clean test images" if arm == "one_hot" else f"{change} points"
        accuracy = f"{100 * arms.mean(arm, 'accuracy').mean:.1f}%"
        tiles.append(Tile(f"{LABELS[arm]} at {noise:.0%} noise", accuracy, detail))
    return tiles


def _by_noise(
    tables: Mapping[float, ArmTable], arms: Sequence[str], name: str, levels: Sequence[float]
) -> list[Line]:
    """A figure of every arm by noise level."""
    return [Line(arm, levels, [tables[at].mean(arm, name) for at in levels]) for arm in arms]


def accuracy_figure(rows: Sequence[SupervisionRow]) -> Figure:
    """Accuracy of every arm by noise, and its gain over one-hot labels."""
    levels, noise = levels_of(rows), judged_noise(rows)
    tables = {level: supervision_table(rows, level) for level in levels}
    gains = {level: table.against("one_hot") for level, table in tables.items()}
    others = [arm for arm in ARMS if arm != "one_hot"]
    panels = [
        LinePanel(
            "Accuracy on clean test images",
            _NOISE,
            "accuracy",
            _by_noise(tables, list(ARMS), "accuracy", levels),
            tickformat=".0%",
        ),
        LinePanel(
            "Gain over one-hot, paired by seed",
            _NOISE,
            "Δ accuracy",
            _by_noise(gains, others, "accuracy", levels),
            tickformat="+.0%",
            zero=True,
        ),
    ]
    best = max(ARMS, key=lambda arm: tables[noise].mean(arm, "accuracy").mean)
    gain = tables[noise].difference("filter_kd", "one_hot", "accuracy")
    return Figure(
        "accuracy",
        "What is the best teacher of noisy labels?",
        f"At {noise:.0%} wrong labels {LABELS[best]} has the highest mean, "
        f"{tables[noise].mean(best, 'accuracy').mean:.1%}; Filter-KD gains {points(gain)} points "
        "over one-hot labels.",
        f"{_BANDS} Arms of a seed share initial weights, wrong labels and batches. A label that is "
        "wrong is one of the other classes.",
        line_plot(panels, named=LABELS, height=440),
    )


def belief_figure(rows: Sequence[SupervisionRow]) -> Figure:
    """Error of the targets, and how much of the noise is learned."""
    levels, noise = levels_of(rows), judged_noise(rows)
    tables = {level: supervision_table(rows, level) for level in levels}
    noisy = [level for level in levels if level]
    taught = [arm for arm in ARMS if arm not in ("early_stopping", "one_hot_twice")]
    panels = [
        LinePanel(
            "Error of the targets",
            _NOISE,
            "E‖q − e_true‖₂",
            _by_noise(tables, taught, "target_error", levels),
            zero=True,
        ),
        LinePanel(
            "Wrong labels that are learned",
            _NOISE,
            "share of them",
            _by_noise(tables, list(ARMS), "believed_wrong", noisy),
            tickformat=".0%",
            zero=True,
        ),
    ]
    shares = [
        f"{LABELS[arm]} {tables[noise].mean(arm, 'believed_wrong').mean:.0%}"
        for arm in ("one_hot", "kd", "filter_kd")
    ]
    return Figure(
        "belief",
        "Who believes the wrong labels?",
        f"At {noise:.0%} noise the trained networks repeat this share of the wrong labels: "
        f"{join(shares)}.",
        f"{_BANDS} Left: distance of the targets to the true one-hot labels, which no arm sees. "
        "Right: of the training examples with a wrong label, the share for which the network "
        "predicts just that label.",
        line_plot(panels, named=LABELS, height=420),
    )


def detection_figure(detections: Sequence[DetectionRow]) -> Figure | None:
    """AUC of wrong labels by noise, for every score."""
    levels = sorted({row.noise for row in detections})
    if not levels:
        return None
    known = {row.score: row.score for row in detections}
    areas = {
        score: [mean_interval(detection(detections, known[score], level)) for level in levels]
        for score in SCORES
        if score in known
    }
    lines = [Line(score, levels, intervals) for score, intervals in areas.items()]
    at = min(range(len(levels)), key=lambda place: abs(levels[place] - 0.4))
    parts = [
        f"{SCORES[score]} {with_interval(own[at], sign=False)}" for score, own in areas.items()
    ]
    return Figure(
        "detection",
        "Can the learning path find the wrong labels?",
        f"At {levels[at]:.0%} noise, AUC: {join(parts)}.",
        f"{_BANDS} AUC: the probability that a wrong label scores higher than a right one; 0.5 is "
        "chance. All scores come from the one training on the given labels.",
        line_plot(
            [LinePanel("Wrong labels against right ones", _NOISE, "AUC", lines)], named=SCORES
        ),
    )


def speed_figure(speeds: Sequence[SpeedRow]) -> Figure | None:
    """Accumulated influence by step for the kinds of every comparison."""
    panels, leads = [], []
    for contrast, (title, kinds) in _PANELS.items():
        own = [row for row in speeds if row.contrast == contrast]
        if not own:
            continue
        lines = []
        for kind in kinds:
            rows = [row for row in own if row.kind == kind]
            for name in ("influence", "measured"):
                values = np.array([getattr(row, name) for row in rows])
                lines.append(
                    Line(
                        kind,
                        rows[0].steps,
                        [mean_interval(at) for at in values.T],
                        dotted=name == "measured",
                    )
                )
        panels.append(LinePanel(title, "step", "accumulated influence, nats", lines, zero=True))
        fast, slow = (speed_values(speeds, contrast, kind) for kind in kinds)
        leads.append(f"{kinds[0]} leads {kinds[1]} by {with_interval(mean_interval(fast - slow))}")
    if not panels:
        return None
    return Figure(
        "speed",
        "What is learned faster?",
        f"On average over the steps, {join(leads)} nats.",
        "Thick: the sum of all training examples' forces on an example's own label, to first "
        "order, means over the examples of a kind and over seeds with 95% bands; dotted: the "
        "measured change of log p. Full-batch gradient descent, every step accounted for.",
        line_plot(panels, height=420),
    )


def adaptation_figure(adaptations: Sequence[AdaptationRow]) -> Figure | None:
    """Divergence from the truth by example, and its mean by learning rate, of both learners."""
    if not adaptations:
        return None
    directions: tuple[Direction, ...] = ("causal", "anti-causal")
    best = {direction: best_adaptation(adaptations, direction) for direction in directions}
    paths, delays = [], []
    for direction in directions:
        values = np.array([row.kl for row in best[direction]])
        paths.append(
            Line(direction, range(values.shape[1]), [mean_interval(at) for at in values.T])
        )
        rates = sorted({row.learning_rate for row in adaptations})
        by_rate = [
            np.array(
                [
                    r.delay
                    for r in adaptations
                    if (r.direction, r.learning_rate) == (direction, rate)
                ]
            )
            for rate in rates
        ]
        delays.append(
            Line(direction, range(len(rates)), [mean_interval(values) for values in by_rate])
        )
    first, second = (np.array([row.delay for row in best[direction]]) for direction in directions)
    best_rates = [f"{direction} {best[direction][0].learning_rate:g}" for direction in directions]
    panels = [
        LinePanel("At the best rate of each", "examples seen", "KL, nats", paths, zero=True),
        LinePanel(
            "At every rate, mean over the examples",
            "learning rate",
            "KL, nats",
            delays,
            zero=True,
            ticks=[f"{rate:g}" for rate in rates],
        ),
    ]
    return Figure(
        "adaptation",
        "Which factorisation adapts faster?",
        f"Over {len(best['causal'][0].kl) - 1} examples after an intervention on the cause the "
        "causal factorisation’s distance from the truth minus the anti-causal one’s is "
        f"{with_interval(mean_interval(first - second))} nats on average.",
        "A causes B. Both learners know the joint before p(A) is replaced, and then see the same "
        "examples, one per step of gradient descent; KL is from the new joint to theirs. Means "
        f"over problems, then over seeds with 95% bands. Best learning rates: {join(best_rates)}.",
        line_plot(panels, height=420),
    )


def speed_section(speeds: Sequence[SpeedRow]) -> Section | None:
    """Where every kind's influence comes from, at the end of training."""
    rows = []
    for contrast, (title, kinds) in _PANELS.items():
        for kind in kinds:
            own = [row for row in speeds if row.contrast == contrast and row.kind == kind]
            if own:
                ends = [
                    with_interval(mean_interval(np.array([getattr(row, name)[-1] for row in own])))
                    for name in ("own", "from_alike", "from_others", "influence", "measured")
                ]
                rows.append((title, kind, *ends))
    if not rows:
        return None
    return section(
        "sources",
        "Who teaches whom",
        "Whose steps move an example’s own label, and which way: below zero they lower it.",
        table(
            (
                "comparison",
                "kind",
                "itself",
                "others of its kind",
                "the other kind",
                "together",
                "measured",
            ),
            rows,
            "ssnnnnn",
        ),
        note="Accumulated first-order influence on log p of the given label after the last step, "
        "nats, means over examples, then over seeds [95% t-interval].",
    )
