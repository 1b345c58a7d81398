"""The table of arms against figures, with the differences to the baseline."""

from __future__ import annotations

from dynolab.comparisons.group_arms import (
    LAZY_CHANGE,
    LAZY_SHARE,
    START,
    ArmTable,
    pass_names,
    splits_of,
)
from dynolab.report.inputs.groups import GroupPageInputs
from dynolab.report.page import Html, section, table, text
from dynolab.report.style import SPLITS, points, with_interval


def arm_table(inputs: GroupPageInputs, figures: ArmTable) -> Html:
    """Every arm's figures with intervals over seeds, and under each the difference to the
    baseline's, paired by seed."""
    arms = (START, *inputs.arms)
    tables = [
        table(
            (title, *arms),
            [
                (called, *(_cell(inputs, figures, arm, name) for arm in arms))
                for name, called in rows
            ],
            "s" + "n" * len(arms),
        )
        for title, rows in _titles(figures).items()
        if rows
    ]
    return section(
        "arms",
        "Every arm, every figure",
        f"{len(inputs.arms)} arms with {len(inputs.seeds)} seeds; small: the difference to "
        f"{inputs.baseline}, paired by seed.",
        *tables,
        note=f"Means over prompts, then over seeds [95% t-interval over {inputs.unit}]. Entropy "
        "and Δ log π are of whole answers.",
    )


def _titles(figures: ArmTable) -> dict[str, list[tuple[str, str]]]:
    """The figures in the order of the page, by table, each with what the table calls it."""
    found = {}
    for split in splits_of(figures.names):
        names = pass_names(figures.names, split)
        chosen = dict.fromkeys((names[0], names[len(names) // 2], names[-1]))
        rows = [(name, f"pass@{name.rpartition('_')[2]}, %") for name in chosen]
        rows += [(f"{split}/{name}", title) for name, title in _OF_SPLIT.items()]
        found[f"{SPLITS[split]} prompts"] = rows
    found["one update"] = [
        (LAZY_SHARE, "questions displaced, %"),
        (LAZY_CHANGE, "Δ log π of right answers, nats"),
    ]
    return {
        title: [(name, called) for name, called in rows if name in figures.names]
        for title, rows in found.items()
    }


_OF_SPLIT = {
    "distinct": "different answers, %",
    "entropy": "entropy, nats",
    "right_change": "Δ log π of right answers, nats",
    "right_fallen": "prompts where these fell, %",
}


def _cell(inputs: GroupPageInputs, figures: ArmTable, arm: str, name: str) -> Html:
    form = with_interval if name.endswith(("change", "entropy")) else points
    told = text(form(figures.mean(arm, name), sign=name.endswith("change")))
    difference = figures.difference(arm, inputs.baseline, name)
    if arm == inputs.baseline or not difference.n:
        return Html(told)
    return Html(f'{told}<br><small class="quiet">{text(form(difference))}</small>')
