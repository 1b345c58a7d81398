"""What helped, in sentences: each remedy's chosen answers, as they end and at the same margin."""

from __future__ import annotations

import json
import shlex
from typing import Any

from dynolab.comparisons.arm_table import ArmTable
from dynolab.comparisons.matched import LEAST_MARGIN
from dynolab.objectives.registry import changed_settings
from dynolab.report.mitigation.followed import Followed
from dynolab.report.mitigation.listed import RANKINGS
from dynolab.report.mitigation.ranking import PLACES, Gains
from dynolab.report.style import SPLITS
from dynolab.report.text import join, mean_and_ends, number, steps_until, with_interval
from dynolab.results.arms import ComparedArms

_IN_WORDS = {
    "negative_dose": "pushes on rejected answers times {}",
    "designed_dose": "pushes on rejected answers cut until they lower no other chosen answer",
}
"""Settings of an objective that a reader of the answer would have to look up."""


def answer(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """The page's answer, which the command line prints; empty with nothing to compare.

    Which arm holds chosen answers up best and in which ways, a line for every arm that learned, and
    how to train as the best does, or what may decide if none is clearly better.
    """
    if not _comparable(compared, figures):
        return []
    learned = _learned(compared, figures)
    gains = Gains(compared, figures, learned)
    best = _best(compared, gains)
    if best is not None:
        sentences = [
            f"The chosen answers hold up best under {best}{_what(compared, best)}.",
            f"It is clearly better than {gains.baseline} in {gains.how_many_ways(best)} over "
            f"{_seeds(compared)}: {gains.clear_in_words(best)}.",
            *_higher(best, gains),
        ]
    elif len(compared.seeds) > 1:
        sentences = [
            f"No arm holds the chosen answers up clearly better than {gains.baseline} over "
            f"{_seeds(compared)}."
        ]
    else:
        sentences = _of_one_seed(gains)
    sentences += _arm_lines(compared, gains, figures, best)
    if best is not None:
        sentences += _margins(best, gains, figures)
    if worse := gains.worse():
        named = join([f"{arm} ({gains.worse_in_words(arm)})" for arm in worse])
        sentences.append(f"Clearly worse: {named}.")
    sentences += [
        f"Over {count} {SPLITS[split]} pair{'s' if count > 1 else ''} nothing is decided: the "
        "intervals are over seeds, and other prompts may differ."
        for split, count in gains.undecided()
    ]
    if not gains.measured("matched") and any(gains.of(arm) for arm in learned):
        sentences += _too_short(compared, figures)
    if best is None:
        more_seeds = range(1, 1 + max(2, len(compared.seeds)))
        seeds = json.dumps([*compared.seeds, *(max(compared.seeds) + n for n in more_seeds)])
        sentences.append(
            f"More seeds may decide: run it again with --set {shlex.quote(f'seeds={seeds}')}; the "
            "trainings so far are kept."
        )
    else:
        sentences.append(
            f"To train as {best} does, under a name of its own, so that the study’s page stays: "
            f"dynolab study FILE --set name=trained-as-{best} {_settings(compared, best)}"
        )
    return sentences


def more(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """What the page adds to its answer: the baseline, the other arms, and single answers."""
    if not _comparable(compared, figures):
        return []
    baseline = compared.baseline
    learned = _learned(compared, figures)
    gains = Gains(compared, figures, learned)
    best = _best(compared, gains)
    heldout = figures.mean(baseline, "heldout/chosen")
    also = f" and of held-out pairs by {with_interval(heldout)}" if heldout.n else ""
    sentences = [
        f"Under {baseline} the chosen answers of training pairs changed by "
        f"{with_interval(figures.mean(baseline, 'train/chosen'))}{also} nats"
        f"{_margin(baseline, figures)}{_fell(baseline, figures)}.{_not_held_out(baseline, figures)}"
    ]
    if others := [f"{arm}{_margin(arm, figures)}" for arm in unlearned(compared, figures)]:
        sentences.append(
            f"{join(others)} did not learn the preference: rejected answers rose as much as chosen "
            "ones or more. A dose nearer to 1 pushes them down harder."
        )
    followed = Followed(compared)
    if followed.answers and (arm := best or followed.best(learned)):
        sentences.append(followed.sentence(arm))
    sentences += [
        followed.mean_sentence(arm)
        for arm in learned
        if compared.arms[arm].filtered_by == "id" and arm != best
    ]
    return [sentence for sentence in sentences if sentence]


def _comparable(compared: ComparedArms, figures: ArmTable) -> bool:
    return bool(figures.mean(compared.baseline, "train/chosen").n and compared.others)


def _learned(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """The arms to compare with the baseline: those that learned the preference."""
    useless = unlearned(compared, figures)
    return [arm for arm in compared.others if arm not in useless]


def _best(compared: ComparedArms, gains: Gains) -> str | None:
    """The arm that is recommended; one seed recommends none."""
    return gains.best() if len(compared.seeds) > 1 else None


def _seeds(compared: ComparedArms) -> str:
    """How many seeds; a study's file has the study's own first."""
    own = " (the first is the study’s)" if compared.follow else ""
    return f"{len(compared.seeds)} seeds{own}"


def _of_one_seed(gains: Gains) -> list[str]:
    arm = gains.highest()
    if arm is None:
        return []
    return [f"Over one seed, which decides nothing, they end highest under {arm}."]


def _too_short(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """Says so where no arm shares a margin with the baseline that could be compared."""
    margin = figures.mean(compared.baseline, "train/margin").mean
    others = (figures.mean(arm, "train/margin").mean for arm in compared.others)
    # The baseline may be no training to compare with, such as the start of all others.
    if margin < LEAST_MARGIN <= max(others, default=0.0):
        return []
    return [
        f"None of them shares a margin of {number(LEAST_MARGIN)} nats or more with "
        f"{compared.baseline}: what is better may only have learned less. Train longer "
        f"(training.steps{steps_until(LEAST_MARGIN, margin, compared.steps or 0)})."
    ]


def _arm_lines(
    compared: ComparedArms, gains: Gains, figures: ArmTable, best: str | None
) -> list[str]:
    """A line for the baseline and for every arm that learned, the best first, and what they say."""
    ranked = gains.best_first()
    arms = [compared.baseline, *ranked, *(arm for arm in gains.arms if arm not in ranked)]
    return [
        "The mean change of chosen answers in nats, in brackets its difference from "
        f"{gains.baseline}; how many of them fell, in training and held out:",
        *(
            f"· {arm}{'' if arm == best else _what(compared, arm)}"
            f"{_left_out(compared, arm)}: {_ends(arm, gains, figures)}"
            for arm in arms
        ),
    ]


def _ends(arm: str, gains: Gains, figures: ArmTable) -> str:
    """“+1 in training (+2 [1, 3]), −1 held out (…); 8% and 50% fell”."""
    changes = []
    for split in SPLITS:
        if (end := figures.mean(arm, f"{split}/chosen")).n:
            difference = gains.difference_in_words(arm, split)
            changes.append(f"{number(end.mean, 2, sign=True)} {PLACES[split]}{difference}")
    shares = [figures.mean(arm, f"{split}/fell") for split in SPLITS]
    fell = [f"{100 * share.mean:.0f}%" for share in shares if share.n]
    return f"{', '.join(changes)}{f'; {join(fell)} fell' if fell else ''}"


def _margins(best: str, gains: Gains, figures: ArmTable) -> list[str]:
    """What the best arm learned, and its difference where both learned as much."""
    margins = []
    for split in SPLITS:
        name = f"{split}/margin"
        own, before = (figures.mean(arm, name) for arm in (best, gains.baseline))
        if own.n and before.n:
            change = figures.difference(best, gains.baseline, name)
            less = " (clearly less)" if figures.decides(change, name) and change.mean < 0 else ""
            margins.append(
                f"{number(own.mean, 2, sign=True)} {PLACES[split]} in place of "
                f"{number(before.mean, 2, sign=True)}{less}"
            )
    if not margins:
        return []
    matched = gains.difference_in_words(best, "matched")
    where = f"; {PLACES['matched']}, chosen answers in training differ{matched}" if matched else ""
    return [
        f"Under {best} the margin, chosen minus rejected, changes by {' and by '.join(margins)}"
        f"{where}."
    ]


def _higher(best: str, gains: Gains) -> list[str]:
    """Which arm ends higher than the best, and why it is not the best."""
    highest = gains.highest()
    if highest is None or highest == best:
        return []
    lacks = (
        "it is worse elsewhere" if highest in gains.worse() else gains.lacks_in_words(highest, best)
    )
    return [f"On average {highest} ends {gains.end_in_words(highest)}, but {lacks}."]


def _left_out(compared: ComparedArms, arm: str) -> str:
    """How many pairs an arm leaves out, in brackets."""
    pairs = max((len(run.left_out) for run in compared.runs[arm]), default=0)
    by = compared.arms[arm].filtered_by
    if by == "id":
        which = "those that pulled hardest in the study" if compared.follow else "the named ones"
    else:
        which = f"those ranked worst by {RANKINGS.get(by or '', 'an audit')}"
    return f" ({pairs} pair{'s' if pairs > 1 else ''} left out, {which})" if pairs else ""


def _what(compared: ComparedArms, name: str) -> str:
    """What an arm sets otherwise than the baseline, in brackets."""
    arm = compared.arms[name]
    changed = _objective_changes(compared, name)
    if arm.warmup_steps is not None:
        changed["warmup_steps"] = arm.warmup_steps
    texts = (
        _IN_WORDS.get(setting, f"{setting}: {{}}").format(json.dumps(value))
        for setting, value in changed.items()
    )
    return f" ({', '.join(texts)})" if changed else ""


def _objective_changes(compared: ComparedArms, name: str) -> dict[str, Any]:
    """The settings of an arm's objective that differ from the baseline's.

    It is given whole, as `objective`, if it is another one, or leaves one of the baseline's unset.
    """
    objective = compared.arms[name].objective
    own = objective.model_dump(mode="json")
    base = compared.arms[compared.baseline].objective.model_dump(mode="json")
    written = changed_settings(objective)
    if own["name"] != base["name"] or base.keys() - own.keys():
        return {"objective": written}
    changed = [setting for setting in own if own[setting] != base.get(setting)]
    return {setting: written.get(setting, own[setting]) for setting in changed}


def _settings(compared: ComparedArms, name: str) -> str:
    """What a study sets to train as an arm does, as options of its command."""
    arm = compared.arms[name]
    settings: dict[str, Any] = {
        "preference.objective" if setting == "objective" else f"preference.objective.{setting}": to
        for setting, to in _objective_changes(compared, name).items()
    }
    if compared.steps is not None:
        settings["preference.steps"] = compared.steps
    if arm.warmup_steps is not None:
        settings["preference.warmup_steps"] = arm.warmup_steps
    if arm.filtered_by == "id":
        settings["preference_filter"] = {"pairs": list(arm.named)}
    elif arm.filtered_by is not None:
        settings["preference_filter"] = {"by": arm.filtered_by, "drop": arm.dropped}
    options = (shlex.quote(f"{name}={json.dumps(value)}") for name, value in settings.items())
    return " ".join(f"--set {option}" for option in options)


def unlearned(compared: ComparedArms, figures: ArmTable) -> list[str]:
    """Arms that do not prefer the chosen answers more than before, whatever else they do."""
    margins = {arm: figures.mean(arm, "train/margin") for arm in compared.arms}
    return [arm for arm, margin in margins.items() if margin.n and margin.mean <= 0]


def _fell(arm: str, figures: ArmTable) -> str:
    """Which shares of the answers fell."""
    shares = [
        f"{number(100 * share.mean)} % of the {name} ones"
        for split, name in SPLITS.items()
        if (share := figures.mean(arm, f"{split}/fell")).n
    ]
    return f"; {join(shares)} fell" if shares else ""


def _not_held_out(arm: str, figures: ArmTable) -> str:
    """Says so where the preference is learned on training pairs alone."""
    train, heldout = (figures.mean(arm, f"{split}/margin") for split in SPLITS)
    if not train.n or not heldout.n or not heldout.mean <= 0 < train.mean:
        return ""
    if figures.decides(heldout, "heldout/margin"):
        return " Held out the margin fell: there rejected answers gained on the chosen ones."
    return " Held out the margin did not grow."


def _margin(arm: str, figures: ArmTable) -> str:
    """The margins that an arm learned; what it did not learn held out shows in the second."""
    parts = [
        f"{mean_and_ends(margin)[0]} {place}"
        for split, place in (("train", "in training"), ("heldout", "held out"))
        if (margin := figures.mean(arm, f"{split}/margin")).n
    ]
    return f", at a margin of {' and '.join(parts)}" if parts else ""
