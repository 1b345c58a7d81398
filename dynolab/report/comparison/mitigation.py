"""The page of remedies: trainings on pairs that share a start, against a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from numpy import ndarray

from dynolab.claims.arms import WON, assess_remedies
from dynolab.claims.verdict import Verdict
from dynolab.comparisons.arm_table import ArmTable
from dynolab.comparisons.matched import LEAST_MARGIN, table_of
from dynolab.comparisons.removals import RANDOM, removals
from dynolab.report.comparison.trade import trade_figure
from dynolab.report.figure import Figure
from dynolab.report.inputs.study import StageFacts
from dynolab.report.page import (
    ANSWER,
    Section,
    Words,
    as_dicts,
    table,
    write_page,
    write_summary,
    write_text,
)
from dynolab.report.plots import DotPanel, forest_plot
from dynolab.report.style import SPLITS, excerpt, number, points, text_table, with_interval
from dynolab.report.tables import (
    MEASURES,
    RIGHT_ANSWERS,
    Measure,
    ending,
    outcome_counts,
    outcome_mark,
    run_name,
    run_table,
    standings,
    unlearned,
)
from dynolab.results.arms import ArmFacts, ComparedArms, RunFigures
from dynolab.statistics import mean_interval

FIRST = (
    Measure("train/chosen", "Δ chosen, in training", signed=True),
    Measure("heldout/chosen", "Δ chosen, held out", signed=True),
    Measure("matched/chosen", "Δ chosen, at the same margin", signed=True),
    Measure("matched/heldout", "Δ chosen, held out, at the same margin", signed=True),
    Measure("train/fell", "% that fell, in training", share=True),
    Measure("heldout/fell", "% that fell, held out", share=True),
    Measure("train/margin", "Δ margin, in training", signed=True),
)
"""Measures of the first table, `tables.MEASURES` among them, by which the best run is found."""

MORE = (
    Measure("heldout/margin", "Δ margin, held out", signed=True),
    Measure("train/rejected", "Δ rejected y⁻", signed=True),
    Measure("train/argmax", "Δ y*", signed=True),
    Measure("train/gap", "Δ gap y* − y⁺", signed=True),
    Measure("train/gap_by_margin", "gap by margin"),
    Measure("matched/gap", "Δ gap, at the same margin", signed=True),
    Measure("matched/steps", "times the steps to that margin"),
)
SAMPLED = (
    Measure("heldout/right", "right, held out, %", share=True),
    Measure("train/right", "right, trained on, %", share=True),
    Measure("heldout/wrong", "wrong, held out, %", share=True),
    Measure("train/refused", "rejected’s fault, %", share=True),
    Measure("heldout/won", "preferred, %", share=True),
    Measure("train/distinct_2", "distinct-2, %", share=True),
    Measure("train/longest_repeat", "longest repeat, tokens"),
    Measure("train/entropy", "entropy, nats"),
)
_PANELS = (
    DotPanel("Chosen y⁺", "Δ nats", {SPLITS[s]: f"{s}/chosen" for s in SPLITS}, zero=True),
    DotPanel("Gap y* − y⁺", "Δ nats", {SPLITS[s]: f"{s}/gap" for s in SPLITS}, zero=True),
    DotPanel("Margin", "Δ nats", {SPLITS[s]: f"{s}/margin" for s in SPLITS}, zero=True),
    DotPanel("Right answers", "share", {SPLITS[s]: f"{s}/right" for s in SPLITS}, ".3~p"),
    DotPanel("Preferred", "share of contests", {SPLITS["heldout"]: "heldout/won"}, ".3~p"),
    DotPanel("Entropy", "nats", {SPLITS["train"]: "train/entropy"}),
)


def write_mitigation_page(
    compared: ComparedArms,
    folder: Path,
    *,
    settings: str = "",
    stages: Sequence[StageFacts] = (),
    commands: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Writes the self-contained `mitigation.html`, `summary.json`, `comparison.json` with all the
    page's data, `answer.txt` for the command line, and the figure in `figures/`.

    **Arguments:** `commands`: the command that trains as a run does, by run.

    **Returns** the summary's flat, finite metrics: `<run>/<figure>`, means over seeds,
    `<run>/diverged`, counts of seeds, and `claims/<outcome>`.
    """
    figures = table_of(compared)
    words, best = _words(compared, figures, commands or {})
    verdicts = assess_remedies(list(compared.arms), compared.baseline, figures)
    page = words.page(
        compared.name,
        answer=[*words.lines("answer"), *words.lines("next")],
        content=[
            *_sections(compared, figures, words, best),
            _removal_section(compared, words),
            _followed_section(compared),
            words.section("settings", _settings_table(compared)),
            words.section("verdicts", _verdict_table(verdicts)),
        ],
        settings=settings,
        stages=stages,
    )
    write_page(page, folder, "mitigation.html")
    write_text(folder / "comparison.json", compared.model_dump_json(indent=1) + "\n")
    lines = [*words.lines("answer"), Markup.escape(_lines(compared, figures)), *words.lines("next")]
    write_text(folder / ANSWER, "\n".join(line.unescape() for line in lines) + "\n")
    plain, matched = {}, {}
    for name, mean in figures.means([*compared.arms]).items():
        if "/matched/" not in name:
            plain[name] = mean
        elif not name.startswith(f"{compared.baseline}/"):
            matched[name.replace("/matched/", "/")] = mean.as_dict()
    metrics = {name: mean.mean for name, mean in plain.items()}
    for run, seeds in compared.runs.items():
        metrics[f"{run}/diverged"] = float(sum(seed.diverged is not None for seed in seeds))
    differences = figures.against(compared.baseline).means(compared.others)
    summary = {
        "comparison": compared.name,
        "seeds": list(compared.seeds),
        "arms": list(compared.arms),
        "baseline": compared.baseline,
        "metrics": metrics | outcome_counts(verdicts),
        "means": as_dicts(plain),
        "differences": as_dicts({name: differences[name] for name in differences if name in plain}),
        "matched": matched,
        "removals": {
            name: effect
            for removal in removals(compared)
            for name, effect in removal.effects.items()
        },
        "ends": _ends(compared),
        "verdicts": [verdict.summary() for verdict in verdicts],
    }
    return write_summary(summary, folder)


def comparison_sections(compared: ComparedArms) -> list[Section | Figure | None]:
    """What each run trades, the table of runs, the chart, and the tables of further figures."""
    figures = table_of(compared)
    return _sections(compared, figures, *_words(compared, figures, {}))


def _sections(
    compared: ComparedArms, figures: ArmTable, words: Words, best: str | None
) -> list[Section | Figure | None]:
    runs, baseline = list(compared.arms), compared.baseline
    shown = []
    for panel in _PANELS:
        measured = {k: name for k, name in panel.figures.items() if name in figures.names}
        if measured:
            shown.append(replace(panel, figures=measured))
    more = [run_table(figures, runs, measures, baseline) for measures in (MORE, SAMPLED)]
    return [
        trade_figure(figures, compared.others, baseline),
        words.section("runs", run_table(figures, runs, FIRST, baseline, best, _ends(compared))),
        words.figure("remedies", forest_plot(figures, runs, shown, baseline)) if shown else None,
        words.section("more", *more),
    ]


def _ends(compared: ComparedArms) -> dict[str, str]:
    """How every run's trainings ended."""
    ends = {}
    for run, trainings in compared.runs.items():
        ends[run] = ending(dict(zip(compared.seeds, trainings, strict=True)))
    return ends


def _words(
    compared: ComparedArms, figures: ArmTable, commands: Mapping[str, str]
) -> tuple[Words, str | None]:
    """The page's texts, which name these numbers, and the recommended run, if one is."""
    baseline = compared.baseline
    useless = unlearned(figures, compared.others)
    controls = {run for run, facts in compared.arms.items() if facts.filtered_by == RANDOM}
    learned = [run for run in compared.others if run not in useless and run not in controls]
    # Fewer pairs train otherwise whichever are left out: these did not do more than random ones.
    as_random = {
        removal.run for removal in removals(compared) if not removal.against_random.low > 0
    }
    ranked = standings(figures, [run for run in learned if run not in as_random], baseline)
    best = ranked[0].run if ranked and ranked[0].recommended else None
    losers = [standing for standing in ranked if standing.better and standing.lost]
    reached = any(figures.mean(run, "matched/margin").n for run in learned)
    judged_by = [measure for measure in FIRST if measure.figure in {*MEASURES} & {*figures.names}]
    words = Words(
        "mitigation.html",
        compared=compared,
        best=ranked[0] if best else None,
        cost=_traded(figures, best, baseline, [*_TRADED]) if best else [],
        losers={rival.run: _traded(figures, rival.run, baseline, rival.lost) for rival in losers},
        worse=[standing.run for standing in ranked if standing.worse],
        others=[rival.run for rival in ranked[1:] if rival.better and not rival.lost],
        measured=sum(name in figures.names for name in MEASURES),
        few=[measure.caption for measure in judged_by if figures.few(measure.figure)],
        useless=useless,
        least=LEAST_MARGIN if learned and not reached else None,
        command=commands.get(best or "", ""),
        removals=removals(compared),
        more_seeds=[*compared.seeds, *(max(compared.seeds) + further for further in (1, 2))],
    )
    return words, best


_TRADED = {
    "train/margin": "margin {} nats",
    "heldout/right": "right answers held out {} points",
    "train/right": "right answers in training {} points",
    WON: "preferred in {} % of contests",
}
"""What a remedy may cost: differences from the baseline, and the share of contests won."""


def _traded(figures: ArmTable, run: str, baseline: str, names: Sequence[str]) -> list[str]:
    """What a run gave or gained of `names`, as texts, without what was not measured."""
    texts = []
    for name in names:
        change = figures.difference(run, baseline, name)
        shown = with_interval(change)
        if name in RIGHT_ANSWERS:
            shown = points(change)
        elif name == WON:
            change = figures.mean(run, name)
            shown = points(change, sign=False)
        if change.n:
            texts.append(_TRADED[name].format(shown))
    return texts


_IN_TERMINAL = {
    "heldout/chosen": "Δ chosen, held out",
    "train/chosen": "Δ chosen, in training",
    "train/margin": "Δ margin",
    "heldout/right": "right, held out, %",
    WON: "preferred, %",
}


def _lines(compared: ComparedArms, figures: ArmTable) -> str:
    """The table of runs for a terminal: changes of chosen answers, and what they cost."""
    names = [name for name in _IN_TERMINAL if name in figures.names]
    if "heldout/chosen" in names:
        names.remove("train/chosen")
    rows = []
    for run in compared.arms:
        cells = []
        for name in names:
            mean, change = figures.mean(run, name), figures.difference(run, compared.baseline, name)
            share = name == WON or name in RIGHT_ANSWERS
            cell = number(100 * mean.mean) if share else number(mean.mean, 2, sign=True)
            if name == WON and mean.n:
                cell = points(mean, sign=False)
            elif run != compared.baseline and change.n:
                cell = f"{cell} ({points(change) if share else with_interval(change)})"
            cells.append(cell)
        rows.append((run, *cells))
    return text_table(("", *map(_IN_TERMINAL.__getitem__, names)), rows, "s" * (1 + len(names)))


def _removal_section(compared: ComparedArms, words: Words) -> Section | None:
    """What leaving out named pairs did, beside leaving out random ones; None without a control."""
    rows = [
        (
            run_name(removal.run),
            removal.pairs,
            with_interval(removal.against_baseline),
            with_interval(removal.control_effect),
            with_interval(removal.against_random),
        )
        for removal in removals(compared)
    ]
    head = ("run", "pairs left out", "Δ", "without random pairs", "difference")
    return words.table("removals", head, rows, "snnnn", cards=True)


def _followed_section(compared: ComparedArms) -> Section | None:
    """Single answers by run; None without any.

    The first seed chose the answers by their fall. Such answers fall less in another training,
    whatever the run (regression to the mean): so means are over the other seeds, if these observe
    the answers too.
    """
    answers, baseline = compared.followed, compared.baseline
    if not answers or not compared.others:
        return None
    # Changes by answer and seed; NaN where a seed does not observe the answer.
    changes: dict[str, Float[ndarray, "answers seeds"]] = {}
    for run in (baseline, *compared.others):
        changes[run] = np.array([answer.changes[run] for answer in answers], dtype=float)
    observing = np.flatnonzero(np.isfinite(changes[baseline]).any(axis=0))
    first, others = observing[:1], observing[1:]
    over = others if others.size else first
    rows = []
    for place, answer in enumerate(answers):
        base = changes[baseline][place]
        cells = [run_name(answer.pair_id, about=excerpt(answer.prompt, 70, end=True))]
        for run, values in changes.items():
            mean = _mean(values[place, over])
            difference = "" if run == baseline else _mean((values[place] - base)[over])
            cells.append(_CHANGE.format(mean, difference))
        rows.append((cells[0], SPLITS[answer.split], _mean(base[first]), *cells[1:]))
    words = Words(
        "mitigation.html",
        compared=compared,
        first=[compared.seeds[at] for at in first],
        over=[compared.seeds[at] for at in over],
        unknown=sorted(set(compared.follow) - {answer.pair_id for answer in answers}),
    )
    head = ("answer", "split", f"{baseline}, first seed", baseline, *compared.others)
    return words.section("followed", table(head, rows, "ss" + "n" * (len(head) - 2), cards=True))


_CHANGE = Markup('{}<br><small class="quiet">{}</small>')


def _mean(values: Float[ndarray, " seeds"]) -> str:
    return number(mean_interval(values).mean, sign=True)


def _verdict_table(verdicts: Sequence[Verdict]) -> Markup:
    """One row for every run, one column for every hoped-for effect."""
    marks = {(verdict.topic, verdict.claim): outcome_mark(verdict) for verdict in verdicts}
    effects = list(dict.fromkeys(verdict.claim for verdict in verdicts))
    runs = dict.fromkeys(verdict.topic for verdict in verdicts)
    rows = []
    for run in runs:
        rows.append((run_name(run), *(marks.get((run, effect), "–") for effect in effects)))
    return table(("run", *effects), rows, cards=True)


def _settings_table(compared: ComparedArms) -> Markup:
    """Every run's start, pairs and settings, and the pairs that its filter left out."""
    rows = []
    for run, facts in compared.arms.items():
        texts = _settings(facts), _left_out(compared.runs[run])
        rows.append((run_name(run), facts.start, facts.pairs, *texts))
    return table(("run", "start", "pairs", "settings", "pairs left out"), rows, cards=True)


def _settings(facts: ArmFacts) -> str:
    """A run's objective and the settings that are not the default."""
    settings = facts.objective.model_dump(exclude_defaults=True, exclude={"name", "source_sha256"})
    settings |= facts.model_dump(
        exclude_defaults=True, exclude={"objective", "start", "pairs", "named", "alarm"}
    )
    if facts.alarm:
        for name, value in facts.alarm.model_dump(exclude_defaults=True).items():
            settings[f"alarm.{name}"] = value
    texts = [f"{name} = {value}" for name, value in settings.items() if value is not None]
    return ", ".join([facts.objective.name, *texts])


def _left_out(runs: Sequence[RunFigures]) -> str:
    """How many pairs a run left out, and which of them with every seed."""
    counts = sorted({len(run.left_out) for run in runs if run.left_out})
    always = [pair for pair in runs[0].left_out if all(pair in run.left_out for run in runs[1:])]
    shown = ", ".join(always[:20]) + (" …" if len(always) > 20 else "")
    return f"{'–'.join(map(str, counts))}: {shown}" if counts else ""
