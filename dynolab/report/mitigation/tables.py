"""The tables of remedies: what each arm is, its figures, and their difference from the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dynolab.comparisons.arm_table import ArmTable
from dynolab.objectives.dpo import DPOConfig
from dynolab.report.page import Section, section, table
from dynolab.report.style import objective_name
from dynolab.report.text import join, mean_and_ends, number
from dynolab.results.arms import ArmFacts, ComparedArms, RunFigures
from dynolab.statistics import Interval

_PAPER = "Ren & Sutherland, arXiv 2407.10490"
_SOURCES = {
    "dpo": "Rafailov et al., arXiv 2305.18290",
    "ipo": "Azar et al., arXiv 2310.12036",
    "simpo": "Meng et al., arXiv 2405.14734",
    "robust_dpo": "Chowdhury et al., arXiv 2403.00409",
    "slic": "Zhao et al., arXiv 2305.10425",
    "hinge": "Liu et al., arXiv 2309.06657",
    "sppo": "Wu et al., arXiv 2405.00675",
}
_STARTS: dict[str, str] = {
    "extended": "after SFT on both answers of every pair, in twice the steps: each weighs as the "
    "chosen one does in plain SFT",
    "extended_half": "after SFT on both answers of every pair, in as many steps: each has half the "
    "weight",
    "base": "from the base model, without SFT",
}
_PAIRS = {
    "resampled": (
        "rejected answers sampled once from the model that it starts from, chosen ones the data's",
        _PAPER,
    ),
    "on_policy": (
        "on-policy: both answers sampled from the policy in training and ranked",
        "Guo et al., arXiv 2402.04792",
    ),
}
_RANKINGS = {"ches": "CHES", "ches_per_token": "CHES per token"}


@dataclass(frozen=True)
class Column:
    """A column of the table; a share is shown in percent.

    `note` explains the caption, if needed.
    """

    figure: str
    caption: str
    share: bool = False
    change: bool = False
    note: str = ""


COLUMNS = (
    Column("heldout/right", "right, held out, %", share=True),
    Column(
        "train/right",
        "right, tuned on, %",
        share=True,
        note="Right: sampled answers that state the chosen answer's fact.",
    ),
    Column(
        "heldout/wrong",
        "wrong, held out, %",
        share=True,
        note="Wrong: those that state something else, right in form or not; the others are broken.",
    ),
    Column("train/gap", "Δ gap y* − y⁺", change=True),
    Column("train/chosen", "Δ chosen y⁺", change=True),
    Column("heldout/chosen", "Δ chosen, held out", change=True),
    Column("train/fell", "chosen that fell, %", share=True),
    Column("heldout/fell", "that fell, held out, %", share=True),
    Column("train/rejected", "Δ rejected y⁻", change=True),
    Column("train/margin", "Δ margin y⁺ − y⁻", change=True),
    Column("heldout/margin", "Δ margin, held out", change=True),
    Column("train/argmax", "Δ y*", change=True),
    Column(
        "train/gap_by_margin",
        "gap by margin",
        note="Gap by margin: Δ gap over Δ (y⁺ − y⁻) if that is a nat or more: what squeezing "
        "costs per nat learned.",
    ),
    Column(
        "train/refused",
        "rejected's fault, %",
        share=True,
        note="Rejected's fault: sampled answers that state the rejected answer's wrong fact, or "
        "insult as it does; if they grow, extended SFT does harm.",
    ),
    Column(
        "heldout/won",
        "preferred, %",
        share=True,
        note="Preferred: share of contests won on held-out prompts, ties half.",
    ),
    Column("train/distinct_2", "distinct-2, %", share=True),
    Column(
        "train/longest_repeat",
        "longest repeat",
        note="Distinct-2 and longest repeat, in tokens, are of single answers to training prompts.",
    ),
)
_SHOWN_PAIRS = 20
TO_THE_END = "to the end"


def mitigation_table(compared: ComparedArms, figures: ArmTable) -> Section:
    """Every arm's figures with intervals over seeds, and how its runs ended."""
    shown = [column for column in COLUMNS if column.figure in figures.names]
    rows = [
        (
            _name(arm, ending(compared.runs[arm], compared.seeds)),
            *(_cell(compared, figures, arm, column) for column in shown),
        )
        for arm in compared.arms
    ]
    notes = [
        "Means over pairs or prompts, then over seeds [95% t-interval over seeds]; changes in "
        "nats since the start of preference training.",
        *(column.note for column in shown if column.note),
        "A run that diverged has no figures: means are over the others.",
    ]
    return section(
        "arms",
        "Every arm, every figure",
        f"{len(compared.arms)} arms with {len(compared.seeds)} seeds; below: the difference from "
        f"{compared.baseline}, paired by seed, bold where its interval excludes zero.",
        table(("arm", *(column.caption for column in shown)), rows, "s" + "n" * len(shown)),
        note=" ".join(notes),
    )


def _name(arm: str, ended: str) -> Markup:
    """An arm's name, and how its runs ended if not as planned."""
    name = Markup("<b>{}</b>").format(arm)
    if ended == TO_THE_END:
        return name
    return name + Markup('<br><small class="quiet">{}</small>').format(ended)


def ending(runs: Sequence[RunFigures], seeds: Sequence[int]) -> str:
    """How an arm's runs ended, with the seeds of those that did not end as planned."""
    ends = [
        f"seed {seed} diverged after {run.diverged.step} steps"
        for seed, run in zip(seeds, runs, strict=True)
        if run.diverged is not None
    ]
    stops = [run.alarm.step for run in runs if run.alarm is not None and run.alarm.stopped]
    if stops:
        steps = "–".join(dict.fromkeys(map(str, (min(stops), max(stops)))))
        ends.append(f"{len(stops)} of {len(runs)} ended by the alarm at step {steps}")
    return "; ".join(ends) or TO_THE_END


def _cell(compared: ComparedArms, figures: ArmTable, arm: str, column: Column) -> Markup:
    own = figures.mean(arm, column.figure)
    own = own.within(0, 1) if column.share else own
    mean, ends = _mean_and_ends(own, column, sign=column.change)
    cell = Markup("{}<br><small>{}</small>").format(mean, ends)
    difference = figures.difference(arm, compared.baseline, column.figure)
    if arm == compared.baseline or not difference.n:
        return cell
    change, ends = _mean_and_ends(difference, column, sign=True)
    mark = Markup(
        "<b>{}</b>" if figures.decides(difference, column.figure) else "<span>{}</span>"
    ).format(change)
    quiet = Markup('<br><small class="quiet">{}</small>').format
    return cell + quiet(mark) + quiet(ends)


def _mean_and_ends(value: Interval, column: Column, *, sign: bool) -> tuple[str, str]:
    """Mean and interval of a figure; a share in percent."""
    if not value.n:
        return "–", ""
    mean, low, high = mean_and_ends(value.times(100) if column.share else value, sign)
    return mean, f"[{low}, {high}]"


def mitigation_list(compared: ComparedArms) -> Section:
    """What every arm is, its source, and its non-default settings."""
    bold = Markup("<b>{}</b>")
    rows = []
    for label, arm in compared.arms.items():
        what, source = _what(arm)
        rows.append(
            (bold.format(label), what + _left_out(compared.runs[label]), source, _settings(arm))
        )
    return section(
        "compared",
        "What is compared",
        f"{join(compared.others)} against {compared.baseline}, the baseline."
        if compared.others
        else f"{compared.baseline} alone.",
        table(("arm", "what it is", "source", "settings"), rows),
        note=f"{compared.training} Settings: those that differ from the default.",
    )


def _left_out(runs: Sequence[RunFigures]) -> str:
    """How many pairs an arm's filter left out, and those that it left out with every seed."""
    counts = sorted({len(run.left_out) for run in runs if run.left_out})
    if not counts:
        return ""
    always = [pair for pair in runs[0].left_out if all(pair in run.left_out for run in runs[1:])]
    more = len(always) - _SHOWN_PAIRS
    shown = join([*always[:_SHOWN_PAIRS], *([f"{more} more"] if more > 0 else [])])
    seeds = "" if len(runs) == 1 else "with every seed: "
    return f" ({'–'.join(map(str, counts))} pairs; {seeds}{shown or 'none'})"


def _what(arm: ArmFacts) -> tuple[str, str]:
    """What an arm does, and who proposed it."""
    name = objective_name(arm.objective.name)
    parts, source = [], _SOURCES.get(arm.objective.name, "–")
    if arm.start in _STARTS:
        parts.append(_STARTS[arm.start])
        source = _PAPER
    if arm.pairs in _PAIRS:
        pairs, proposed_by = _PAIRS[arm.pairs]
        parts.append(pairs)
        # SPPO itself is on-policy.
        source = source if arm.objective.name == "sppo" else proposed_by
    if arm.filtered_by == "id":
        parts.append("without the pairs that are named")
    elif arm.filtered_by is not None:
        by = _RANKINGS.get(arm.filtered_by)
        ranking = f"by {by}" if by else f"by the audit ({arm.filtered_by})"
        parts.append(f"without the {arm.dropped:.0%} of the pairs that rank worst {ranking}")
        source = "Razin et al., arXiv 2410.08847" if by else "–"
    if arm.alarm is not None:
        done = "ended" if arm.alarm.stop else "watched"
        bounds = {
            "the gap has grown by": arm.alarm.rise,
            "the gap is": arm.alarm.gap,
            "the margin has grown by": arm.alarm.margin,
        }
        known = [f"{how} {number(nats)} nats" for how, nats in bounds.items() if nats is not None]
        parts.append(f"{done} when {' or '.join(known)}")
        source = "–"
    if isinstance(arm.objective, DPOConfig) and arm.objective.negative_dose != 1:
        parts.append(f"push on rejected tokens × {number(arm.objective.negative_dose)}")
        source = "–"
    dose = getattr(arm.objective, "designed_dose", None)
    if dose is not None:
        parts.append(
            f"each step the largest push on rejected tokens, by {dose.per}, that to first order "
            f"does not lower {dose.sample} other chosen answers"
        )
        source = "–"
    if arm.warmup_steps:
        parts.append("smaller first steps: a learning rate that warms up")
        source = "–"
    return ", ".join([name, *parts]), source


def _settings(arm: ArmFacts) -> str:
    """An arm's settings that are not the default."""
    changed = arm.objective.model_dump(
        exclude_defaults=True, exclude={"name", "negative_dose", "designed_dose"}
    )
    if arm.learning_rate is not None:
        changed["learning rate"] = f"{arm.learning_rate:g}"
    if arm.warmup_steps is not None:
        changed["warm-up steps"] = arm.warmup_steps
    if arm.updates_per_rollout is not None:
        changed["steps between samplings"] = arm.updates_per_rollout
    return ", ".join(f"{name} = {value}" for name, value in changed.items()) or "–"
