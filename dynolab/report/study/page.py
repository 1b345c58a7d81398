"""The report of a study: the page, the figure of recorded steps, figures as files, and numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dynolab.data.rows import write_rows
from dynolab.data.unknown import UnknownTokens, about_auto
from dynolab.grouping import attributes, evenly_spaced, grouped
from dynolab.report.audit import foreseen_figure, foresight_section
from dynolab.report.comparison.findings import findings_section
from dynolab.report.comparison.mitigation import comparison_sections
from dynolab.report.figure import Figure, buttons, in_panel, subplots
from dynolab.report.forces.matrices import kernel_size_figure, stability_figure
from dynolab.report.forces.token_map import token_map_figure
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.ledger.concentration import concentration_plot
from dynolab.report.ledger.fallen import half_of_a_fall
from dynolab.report.ledger.page import ledger_parts
from dynolab.report.page import Fold, Page, Section, Words, page_html, write_page, write_summary
from dynolab.report.study.answers import answer_sections, repeater_section
from dynolab.report.study.findings import Found, find, printed, summarise
from dynolab.report.study.learning_paths import (
    gap_figure,
    learning_path_figure,
    squeezing_figure,
    training_figure,
)
from dynolab.report.study.position import position_figure
from dynolab.report.study.tables import (
    change_section,
    contrast_section,
    event_section,
    far_steps,
    forecast_section,
    kind_section,
    layer_section,
    pair_section,
    replay_section,
    try_section,
    validity_section,
)
from dynolab.report.style import (
    CHOSEN,
    HISTORY,
    INK,
    MUTED,
    PAPER,
    REJECTED,
    RESIDUAL,
    in_order,
    objective_name,
    style_of,
    with_interval,
)
from dynolab.report.tables import verdict_table
from dynolab.results.ledger_reader import SHOWN_TOGETHER
from dynolab.results.study import ForceRow, Training
from dynolab.statistics import column, mean_interval


def write_report(inputs: ReportInputs, folder: Path) -> dict[str, Any]:
    """Writes a study's report.

    **Arguments:** `inputs`: what was measured; `folder`: where the files go, created if missing.

    **Returns** the content of `summary.json`: `metrics` (a flat map of finite floats), `verdicts`
    and `replay`.

    Files: `report.html` (self-contained), `answer.txt` for the terminal, `summary.json`, per figure
    `figures/<name>.html` and `figures/<name>.json` (plotly), beside one `figures/plotly.min.js`;
    and after preference training `pairs.jsonl` (`PairChange`, worst first).
    """
    results = find(inputs)
    summary = summarise(inputs, results)
    write_page(_page(inputs, results), folder, "report.html")
    write_summary(summary, folder)
    if results.pairs:
        write_rows(folder / "pairs.jsonl", results.pairs)
    return summary


def report_page_html(inputs: ReportInputs, coming: Sequence[str]) -> str:
    """The page of a study that still runs: `coming` names the stages that have not ended.

    What needs the finished study is not on this one: its table of pairs, and the explorer.
    """
    later = dict.fromkeys(("map_command", "explore_command", "path_command"), "")
    unfinished = replace(inputs, facts=inputs.facts.model_copy(update=later))
    return page_html(replace(_page(unfinished, find(unfinished)), coming=tuple(coming)))


def _page(inputs: ReportInputs, results: Found) -> Page:
    """The answer, the figure and tables that show it, what to try; then details and checks."""
    facts, trainings, ledger = inputs.facts, inputs.trainings, inputs.ledger
    compared = inputs.compared
    titles = {training.name: objective_name(training.stage) for training in trainings}
    far = {}
    unknown: UnknownTokens | None = None
    for training in trainings:
        tokens = UnknownTokens.of_metrics(training.rows)
        unknown = tokens if tokens.tokens else unknown
        steps = far_steps(training)
        if steps:
            far[objective_name(training.stage)] = steps
    fell = []
    for split, changes in results.fell.items():
        lower = changes[changes < 0]
        means = {"mean": mean_interval(changes), "fallen": mean_interval(lower)}
        fell.append({"split": split, "count": len(lower), "of": len(changes), **means})
    words = Words(
        "study.html",
        facts=facts,
        trainings=trainings,
        last=trainings[-1] if trainings else None,
        on_pairs=bool(results.fell) or bool(results.pairs),
        fell=fell,
        harmless=results.harmless,
        half=half_of_a_fall(results.pulls),
        pulls=results.pulls,
        counts={split: len(paths.pairs) for (_, split), paths in results.paths.items()},
        far=far,
        unknown=unknown,
        replacing=_replacing(unknown) if unknown else "",
        auto=about_auto(facts.read_otherwise) if facts.read_otherwise else "",
        contrasts=[training.name for training in inputs.contrasts],
        observed=inputs.watched[0] if inputs.watched else None,
        pairs=len(results.pairs),
    )
    maps = [training.token_map for training in trainings if training.token_map]
    bands = inputs.audit.bands if inputs.audit else None
    parts: list[Figure | Section | None] = ledger_parts(ledger, bands) if ledger else [None] * 7
    fallen, pushers, hardest, causes, sources, *when = parts
    return Page(
        name=facts.name,
        heading=words("heading"),
        answer=words.lines("answer"),
        more=words.lines("notes"),
        printed=printed(inputs, results),
        lead=words("lead"),
        content=[
            fallen and replace(fallen, message=""),  # the answer says it
            _squeezed(inputs, results, titles),
            pair_section(results.pairs, words),
            change_section(results.paths, words),
            learning_path_figure(results.paths),
            gap_figure(results.paths),
            squeezing_figure(inputs.squeezing, titles) if inputs.squeezing else None,
            try_section(inputs, results.pairs),
            _concentration(results, words),
            pushers,
            hardest or (token_map_figure(maps[-1]) if maps else None),
            causes,
            sources,
            foresight_section(inputs.audit.foresight) if inputs.audit else None,
            contrast_section(trainings[-1], inputs.contrasts, words) if trainings else None,
            *answer_sections(inputs.answers, titles, results.prompts, words),
            findings_section(compared.findings, "seeds, or prompts where there is one")
            if compared.findings
            else None,
            *(comparison_sections(compared.remedies) if compared.remedies else ()),
            _details(inputs, results, titles, words, when),
            _checks(inputs, results, titles, words),
        ],
        settings=facts.config_text,
        stages=facts.stages,
    )


def _squeezed(inputs: ReportInputs, results: Found, titles: Mapping[str, str]) -> Figure | None:
    """What squeezing did to the tokens of one position."""
    if inputs.squeezing is None or not inputs.trainings:
        return None
    title = titles[inputs.trainings[-1].name]
    return position_figure(inputs.squeezing.position, results.prompts, title)


def _concentration(results: Found, words: Words) -> Figure | None:
    """Whether few pairs or many pulled the fallen answers down."""
    if not results.pulls.half:
        return None
    return words.figure("concentration", concentration_plot(results.pulls, 320))


def _details(
    inputs: ReportInputs,
    results: Found,
    titles: Mapping[str, str],
    words: Words,
    pushes: Sequence[Figure | Section | None],
) -> Fold:
    """When it happened, through which weights, and how answers are coupled."""
    trainings, squeezing, kernel = inputs.trainings, inputs.squeezing, inputs.kernel
    content = [
        event_section(results.events, words),
        foreseen_figure(inputs.audit) if inputs.audit else None,
        *pushes,
        *map(decomposition_figure, reversed(trainings)),
        layer_section(trainings, words),
        training_figure(trainings),
        kernel_size_figure(kernel) if kernel else None,
        stability_figure(kernel) if kernel else None,
        repeater_section(squeezing.generations, titles, words) if squeezing else None,
        kind_section(results.paths, inputs.watched, words),
    ]
    return Fold("details", "Details", content)


def _checks(inputs: ReportInputs, results: Found, titles: Mapping[str, str], words: Words) -> Fold:
    """How far the page can be trusted."""
    verdicts = verdict_table("training", results.verdicts, named=objective_name)
    content = [
        validity_section(inputs.trainings, words),
        replay_section(inputs.trainings, words),
        forecast_section(inputs.squeezing, titles, words) if inputs.squeezing else None,
        words.section("verdicts", verdicts) if inputs.trainings else None,
    ]
    return Fold("checks", "Checks", content)


def _replacing(unknown: UnknownTokens) -> str:
    """The option that replaces characters which the tokenizer does not know; empty without any."""
    characters = json.dumps(dict.fromkeys(unknown.written, "TEXT"), ensure_ascii=False)
    return unknown.option or (
        f"--set {shlex.quote(f'data.replace={characters}')}" if unknown.written else ""
    )


_ONE_SCALE = 8.0  # beyond this ratio the smaller steps' bars would vanish
Parts = tuple[tuple[str, str, str], ...]  # field, what pushed, colour
_PARTS: Parts = (
    ("from_chosen", "", CHOSEN),
    ("from_rejected", "", REJECTED),
    ("from_together", "from both sides together", MUTED),
    ("from_history", "from history (momentum, decay)", HISTORY),
    ("residual", "residual: beyond first order", RESIDUAL),
)
_SIDES = ("the chosen side of the loss", "the rejected side of the loss")


def decomposition_figure(training: Training, sides: tuple[str, str] = _SIDES) -> Figure | None:
    """Mean Δ log π of every kind at recorded steps, split by what pushed.

    **Arguments:** `sides`: names of the loss's two sides.
    """
    rows = _with_together_where_large(training.forces)
    if not rows:
        return None
    steps = evenly_spaced(sorted({row.step for row in rows}), 4)
    parts, kinds = _parts(rows, sides), in_order({row.kind for row in rows})[::-1]
    height = 30 * len(kinds)
    plot = subplots(
        [f"step {step}" for step in steps],
        150 + height,
        space=0.03,
        shared_y=True,
        barmode="relative",
        bargap=0.35,
        margin={"l": 64, "r": 24, "t": 100, "b": 52},
        legend={
            "orientation": "h",
            "x": 0,
            "y": -54 / height,
            "yanchor": "top",
            "traceorder": "normal",
        },
        x={"nticks": 5, "title_text": "Δ log π (nats)", "zerolinecolor": INK},
        y={"showgrid": False, "type": "category", "range": [-0.6, len(kinds) - 0.4]},
    )
    sizes = [np.mean([abs(row.measured) for row in rows if row.step == step]) for step in steps]
    shared = bool(max(sizes) <= _ONE_SCALE * min(sizes))
    for col in range(1, len(steps) + 1):
        _add_bars(plot, [style_of(kind).label for kind in kinds], parts, col)
        if col > 1:
            plot.update_xaxes(matches="x" if shared else None, col=col)
            plot.update_yaxes(ticks="", col=col)
    views = {name: _bar_data(of_view, parts, kinds, steps) for name, of_view in _views(rows)}
    for trace, x, text in zip(plot.data, *views["all prompts"], strict=True):
        trace.update(x=x, customdata=text)
    if len(views) > 1:
        choices: list[tuple[str, list[Any]]] = []
        for name, (values, texts) in views.items():
            choices.append((name, [{"x": values, "customdata": texts}, {}]))
        plot.update_layout(updatemenus=[buttons(choices, 1 + 34 / height)])
    words = Words("study.html", stage=training.stage, shared=shared)
    return replace(words.figure("decomposition", plot), name=f"decomposition-{training.stage}")


def _with_together_where_large(rows: Sequence[ForceRow]) -> Sequence[ForceRow]:
    """The rows; what both sides did together is among the residual where it is small."""
    together = sum(abs(row.from_together) for row in rows)
    sides = sum(abs(row.from_chosen) + abs(row.from_rejected) for row in rows)
    if together > SHOWN_TOGETHER * sides:
        return rows
    joined = []
    for row in rows:
        update = {"residual": row.residual + row.from_together, "from_together": 0.0}
        joined.append(row.model_copy(update=update))
    return joined


def _views(rows: Sequence[ForceRow]) -> list[tuple[str, Sequence[ForceRow]]]:
    """The rows by where their prompts are from, all of them first; without groups of none."""
    groups: dict[str, list[ForceRow]] = {
        "in the step's batch": [],
        "other training prompts": [],
        "held-out prompts": [],
    }
    for row in rows:
        if row.in_batch:
            groups["in the step's batch"].append(row)
        elif row.split == "train":
            groups["other training prompts"].append(row)
        if row.split == "heldout":
            groups["held-out prompts"].append(row)
    return [("all prompts", rows), *(group for group in groups.items() if group[1])]


def _parts(rows: Sequence[ForceRow], sides: tuple[str, str]) -> Parts:
    """The parts that push at all: SFT has no rejected side, SGD without momentum no history."""
    names = {"from_chosen": f"from {sides[0]}", "from_rejected": f"from {sides[1]}"}
    if not any(row.from_rejected for row in rows):
        names["from_chosen"] = "from the batch's answers"
    parts = []
    for name, label, color in _PARTS:
        if any(attributes(rows, name)):
            parts.append((name, names.get(name, label), color))
    return tuple(parts)


def _add_bars(plot: go.Figure, labels: list[str], parts: Parts, col: int) -> None:
    for name, label, color in parts:
        plot.add_bar(
            y=labels,
            orientation="h",
            **in_panel(col, label, name),
            marker={"color": color, "line": {"width": 0}},
            hovertemplate="<b>%{y}</b><br>" + label + " %{customdata}<extra></extra>",
        )
    plot.add_scatter(
        y=labels,
        mode="markers",
        **in_panel(col, "measured"),
        marker={"color": INK, "symbol": "diamond", "size": 9, "line": {"color": PAPER, "width": 1}},
        hovertemplate="<b>%{y}</b><br>measured %{customdata}<extra></extra>",
    )


Bars = tuple[list[list[float | None]], list[list[str]]]


def _bar_data(
    rows: Sequence[ForceRow], parts: Parts, kinds: Sequence[str], steps: Sequence[int]
) -> Bars:
    """Means over prompts for every trace: steps × (parts, measured), one value a kind."""
    by_bar = grouped(((row.step, row.kind), row) for row in rows)
    values: list[list[float | None]] = []
    texts: list[list[str]] = []
    for step in steps:
        for part in (*(name for name, _, _ in parts), "measured"):
            means = [mean_interval(column(by_bar.get((step, kind), ()), part)) for kind in kinds]
            values.append([round(mean.mean, 7) if mean.n else None for mean in means])
            texts.append([f"{with_interval(mean)} nats, n = {mean.n}" for mean in means])
    return values, texts
