"""Every arm's gap, likelihoods, quality and diversity, side by side."""

from __future__ import annotations

from dynolab.comparisons.arm_table import ArmTable
from dynolab.report.dots import DotPanel, forest_plot
from dynolab.report.figure import Figure
from dynolab.report.style import SPLITS
from dynolab.report.text import join, mean_and_ends, points, with_interval
from dynolab.results.arms import ComparedArms

_PANELS = (
    ("Right answers", "share", "right", ".3~p", False),
    ("Gap y* − y⁺", "Δ nats", "gap", "", True),
    ("Chosen y⁺", "Δ nats", "chosen", "", True),
    ("Margin", "Δ nats", "margin", "", True),
    ("Gap by margin", "nats per nat", "gap_by_margin", "", False),
    ("Preferred", "share of contests", "won", ".3~p", False),
    ("Distinct-2", "share", "distinct_2", ".3~p", False),
    ("Entropy", "nats", "entropy", "", False),
)
_JUDGES = {
    "exact": "the world itself: a right fact beats any style, then form, then the preferred words",
    "log_prob": "the base model, by log π per token: it prefers likely answers, not good ones",
}


def remedy_figure(compared: ComparedArms, figures: ArmTable) -> Figure | None:
    """Every arm's gap, likelihoods, quality and diversity, side by side."""
    names = {
        name: {SPLITS[split]: at for split in SPLITS if (at := f"{split}/{name}") in figures.names}
        for _, _, name, _, _ in _PANELS
    }
    panels = [
        DotPanel(title, unit, names[name], form, zero)
        for title, unit, name, form, zero in _PANELS
        if names[name]
    ]
    if not panels:
        return None
    by_margin = (
        "; gap by margin is their ratio: an arm that only trains less has a smaller gap and the "
        "same ratio"
        if names["gap_by_margin"]
        else ""
    )
    return Figure(
        "remedies",
        "What each remedy does to squeezing, quality and diversity",
        _message(compared, figures),
        "Diamonds: means over seeds with 95% t-intervals; dots: single seeds; dotted: "
        f"{compared.baseline}. Gap, chosen and margin (y⁺ − y⁻) are changes since the start of "
        f"preference training, on the watched pairs{by_margin}. The other panels are of sampled "
        f"answers. Preferred: share of answers that beat {compared.baseline}'s to the same "
        f"prompt, ties half. The judge is {_JUDGES.get(compared.judge, compared.judge)}.",
        forest_plot(figures, list(compared.arms), panels, compared.baseline),
    )


def _message(compared: ComparedArms, figures: ArmTable) -> str:
    own = figures.mean(compared.baseline, "train/gap")
    if not own.n:
        return "The gap was not measured under the baseline."
    message = _right_message(compared, figures)
    message += f"Under {compared.baseline} the gap changes by {with_interval(own)} nats."
    for name, start in (("gap", "It grows"), ("gap_by_margin", "Per nat of margin it grows")):
        changes = {
            arm: figures.difference(arm, compared.baseline, f"train/{name}")
            for arm in compared.others
        }
        for sign, how in ((-1, "less"), (1, "more")):
            arms = [
                f"{arm} (by {mean_and_ends(change)[0].lstrip('+−')})"
                for arm, change in changes.items()
                if figures.decides(change, f"train/{name}") and sign * change.mean > 0
            ]
            if arms:
                message += f" {start} {how} under {join(arms)}."
    return message


def _right_message(compared: ComparedArms, figures: ArmTable) -> str:
    """How many held-out answers are right under the baseline, and which arms have more or fewer."""
    right = "heldout/right"
    if right not in figures.names:
        return ""
    own = figures.mean(compared.baseline, right)
    message = f"Of held-out answers {points(own, sign=False)}% are right under {compared.baseline}"
    changes = {arm: figures.difference(arm, compared.baseline, right) for arm in compared.others}
    for sign, how in ((1, "more"), (-1, "fewer")):
        arms = [
            f"{arm} ({mean_and_ends(change.times(100))[0]})"
            for arm, change in changes.items()
            if figures.decides(change, right) and sign * change.mean > 0
        ]
        if arms:
            message += f"; {how} under {join(arms)}"
    return message + ". "
