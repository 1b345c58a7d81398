"""The same training under other conditions, beside the study's own."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.probes.paths import LearningPaths, change, learning_paths
from dynolab.report.inputs.study import Training
from dynolab.report.page import Html, section, table
from dynolab.report.style import join, mean_and_ends, objective_name, style_of, with_interval
from dynolab.results.study import ARGMAX
from dynolab.statistics import Interval, mean_interval

_KINDS = ("chosen", "rejected", ARGMAX)
_MEANING = {
    "resampled": "rejected answers are sampled once from the policy that training starts from; "
    "those watched here are still the data's own",
    "flat-world": "a world whose answers prefer no style, from the base model on",
}


def contrast_section(own: Training, contrasts: Sequence[Training]) -> Html:
    """Changes of the pair, of y* and of the gap in a training and in its contrasts."""
    named = [(f"this study's {objective_name(own.stage)}", learning_paths(own.probes))]
    named += [(f"“{training.name}”", learning_paths(training.probes)) for training in contrasts]
    probed = [(name, paths) for name, paths in named if paths is not None]
    told = [
        f"{mean_and_ends(gap)[0]} nats in {name}" for name, paths in probed if (gap := _gap(paths))
    ]
    notes = [f"“{t.name}”: {_MEANING[t.name]}" for t in contrasts if t.name in _MEANING]
    return section(
        "contrasts",
        "The same training under other conditions",
        f"The gap from the chosen answer up to y* changes by {join(told)}."
        if told
        else "The gap was not measured.",
        table(
            ("training", *(f"Δ {style_of(kind).label}" for kind in _KINDS), "Δ gap y* − y⁺", "n"),
            [(name, *_changes(paths), len(paths.pairs)) for name, paths in probed],
            "snnnnn",
        ),
        note="Changes of log π since step 0 in nats, means over each training's own watched "
        f"training prompts [95%]. {'; '.join(notes)}{'.' if notes else ''}",
    )


def _changes(paths: LearningPaths) -> list[str]:
    kinds = [
        with_interval(mean_interval(change(paths.logp[kind]))) if kind in paths.logp else "–"
        for kind in _KINDS
    ]
    gap = _gap(paths)
    return [*kinds, with_interval(gap) if gap else "–"]


def _gap(paths: LearningPaths) -> Interval | None:
    return None if paths.gap is None else mean_interval(change(paths.gap))
