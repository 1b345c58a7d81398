"""The table of arms against figures, with the differences to the baseline."""

from __future__ import annotations

from dynolab.figures.group_inputs import GroupPageInputs
from dynolab.figures.page import Html, section, table, text
from dynolab.figures.style import SPLITS, with_interval
from dynolab.probes.arms import LAZY_CHANGE, LAZY_SHARE, START, ArmTable, pass_names, splits_of


def arm_table(inputs: GroupPageInputs, figures: ArmTable) -> Html:
    """Every arm's figures with intervals over seeds, and under each the difference to the
    baseline's, paired by seed."""
    arms = (START, *inputs.arms)
    rows = [
        (title, *(_cell(inputs, figures, arm, name) for arm in arms))
        for name, title in _titles(figures)
    ]
    return section(
        "arms",
        "Every arm, every figure",
        f"{len(inputs.arms)} arms with {len(inputs.seeds)} seeds; small: the difference to "
        f"{inputs.baseline}, paired by seed.",
        table(("figure", *arms), rows, "s" + "n" * len(arms)),
        note="Means over prompts, then over seeds [95% t-interval over seeds]. Shares are parts of "
        "one; entropy and changes are in nats, of whole answers.",
    )


def _titles(figures: ArmTable) -> list[tuple[str, str]]:
    """The figures in the order of the page, each with what the table calls it."""
    found = []
    for split in splits_of(figures.names):
        names = pass_names(figures.names, split)
        for name in dict.fromkeys((names[0], names[len(names) // 2], names[-1])):
            found.append((name, f"pass@{name.rpartition('_')[2]}, {SPLITS[split]}"))
        for name, title in _OF_SPLIT.items():
            found.append((f"{split}/{name}", f"{title}, {SPLITS[split]}"))
    found += [(LAZY_SHARE, "questions displaced by one update"),
              (LAZY_CHANGE, "Δ log π of right answers by one update")]  # fmt: skip
    return [(name, title) for name, title in found if name in figures.names]


_OF_SPLIT = {
    "distinct": "different answers",
    "entropy": "entropy of an answer",
    "right_change": "Δ log π of right answers given before",
    "right_fallen": "prompts whose right answers fell",
}


def _cell(inputs: GroupPageInputs, figures: ArmTable, arm: str, name: str) -> Html:
    mean = figures.mean(arm, name)
    told = text(with_interval(mean, sign=name.endswith("change")))
    difference = figures.difference(arm, inputs.baseline, name)
    if arm == inputs.baseline or not difference.n:
        return Html(told)
    return Html(f'{told}<br><small class="quiet">{text(with_interval(difference))}</small>')
