"""The report of a study: one offline page, its figures as files, and its numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dynolab.claims.answers import assess_answers
from dynolab.claims.study import assess
from dynolab.claims.verdict import Verdict
from dynolab.data.rows import Split, write_rows
from dynolab.data.unknown import UnknownTokens, about_auto
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import (
    Event,
    change,
    complete_pairs,
    events_of,
    learning_paths,
    pair_changes,
)
from dynolab.report.audit import foreseen_figure, foresight_section
from dynolab.report.comparison.mitigation import comparison_sections
from dynolab.report.comparison.reproduction import findings_section
from dynolab.report.figure import Figure
from dynolab.report.forces.matrices import kernel_size_figure, stability_figure
from dynolab.report.forces.token_map import token_map_figure
from dynolab.report.inputs.study import ReportInputs, Training
from dynolab.report.ledger.fallen import (
    PAIRS,
    fallen_answers,
    prompt_of,
    summed_pushers,
)
from dynolab.report.ledger.page import ledger_parts
from dynolab.report.page import Fold, Page, Section, Words, page_html, write_page, write_summary
from dynolab.report.study.answers import answer_sections, repeater_section
from dynolab.report.study.decomposition import decomposition_figure
from dynolab.report.study.learning_paths import (
    Paths,
    gap_figure,
    learning_path_figure,
    squeezing_figure,
    training_figure,
)
from dynolab.report.study.summary import changes_since_start, summarise
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
from dynolab.report.style import SPLITS, objective_name
from dynolab.report.text import excerpt, number, text_table
from dynolab.report.verdicts import verdict_table
from dynolab.results.study import PairChange
from dynolab.statistics import mean_interval

_PRINTED = 5  # answers and pairs in a terminal


def write_report(inputs: ReportInputs, folder: Path) -> dict[str, Any]:
    """Writes a study's report.

    **Arguments:** `inputs`: what was measured; `folder`: where the files go, created if missing.

    **Returns** the content of `summary.json`: `metrics` (a flat map of finite floats), `verdicts`
    and `replay`.

    Files: `report.html` (self-contained), `answer.txt` for the terminal, `summary.json`, per figure
    `figures/<name>.html` and `figures/<name>.json` (plotly), beside one `figures/plotly.min.js`;
    and after preference training `pairs.jsonl` (`PairChange`, worst first).
    """
    found = _find(inputs)
    summary = summarise(inputs, changes_since_start(found.paths), found.verdicts, found.events)
    write_page(_page(inputs, found), folder, "report.html")
    write_summary(summary, folder)
    if found.pairs:
        write_rows(folder / "pairs.jsonl", found.pairs)
    return summary


def report_page_html(inputs: ReportInputs, coming: Sequence[str]) -> str:
    """The page of a study that still runs: `coming` names the stages that have not ended.

    What needs the finished study is not on this one: its table of pairs, and the explorer.
    """
    later = dict.fromkeys(("map_command", "explore_command", "path_command"), "")
    unfinished = replace(inputs, facts=inputs.facts.model_copy(update=later))
    return page_html(replace(_page(unfinished, _find(unfinished)), coming=tuple(coming)))


@dataclass(frozen=True)
class _Found:
    """What follows from the inputs: paths, verdicts, events by objective, and pairs, worst first.

    `fell`: changes of the chosen answers in the last training on pairs, by split, in nats.
    """

    paths: Paths
    verdicts: tuple[Verdict, ...]
    events: Mapping[str, tuple[Event, ...]]
    pairs: list[PairChange]
    prompts: Mapping[str, str]
    fell: Mapping[Split, np.ndarray]


def _find(inputs: ReportInputs) -> _Found:
    trainings = inputs.trainings
    probes = {
        training.stage: complete_pairs(training.probes)
        if training.stage in PAIR_OBJECTIVES
        else training.probes
        for training in trainings
    }
    paths = {
        (stage, split): own
        for stage, scores in probes.items()
        for split in SPLITS
        if (own := learning_paths(scores, split)) is not None
    }
    trained = {stage: own for (stage, split), own in paths.items() if split == "train"}
    verdicts = (
        *assess(
            {training.stage: trained.get(training.stage) for training in trainings},
            [row for training in trainings for row in training.forces],
        ),
        *assess_answers(inputs.answers, {t.name: t.stage for t in trainings}),
    )
    prompts = {row.pair_id: row.prompt for row in inputs.watched if row.split == "train"}
    last = trainings[-1].stage if trainings else ""
    on_pairs = last in PAIR_OBJECTIVES
    return _Found(
        paths=paths,
        verdicts=verdicts,
        events={stage: tuple(events_of(own)) for stage, own in trained.items()},
        pairs=pair_changes(trained[last], prompts) if on_pairs and last in trained else [],
        prompts=prompts,
        fell=_chosen_changes(inputs, paths, last) if on_pairs else {},
    )


def _chosen_changes(inputs: ReportInputs, paths: Paths, last: str) -> dict[Split, np.ndarray]:
    """Changes of all pairs' chosen answers in the last training, else of the observed, in nats."""
    found: dict[Split, np.ndarray] = {}
    for split in SPLITS:
        audited = (
            [row.change for row in inputs.audit.changes if row.split == split]
            if inputs.audit
            else []
        )
        own = paths.get((last, split))
        if audited:
            found[split] = np.array(audited)
        elif own is not None and "chosen" in own.logp:
            found[split] = change(own.logp["chosen"])
    return found


def _page(inputs: ReportInputs, found: _Found) -> Page:
    """The answer, the figure and tables that show it, what to try; then details and checks."""
    facts, trainings, ledger = inputs.facts, inputs.trainings, inputs.ledger
    titles = {training.name: objective_name(training.stage) for training in trainings}
    unknown = [own for each in trainings if (own := UnknownTokens.of_metrics(each.rows)).tokens]
    words = Words(
        "study.html",
        facts=facts,
        trainings=trainings,
        last=trainings[-1] if trainings else None,
        on_pairs=bool(found.fell) or bool(found.pairs),
        fell=[
            {
                "split": split,
                "count": int((own < 0).sum()),
                "of": len(own),
                "mean": mean_interval(own),
            }
            for split, own in found.fell.items()
        ],
        counts={split: len(own.pairs) for (_, split), own in found.paths.items()},
        far={objective_name(own.stage): steps for own in trainings if (steps := far_steps(own))},
        unknown=unknown[-1] if unknown else None,
        replacing=_replacing(unknown[-1]) if unknown else "",
        auto=about_auto(facts.read_otherwise) if facts.read_otherwise else "",
        contrasts=[training.name for training in inputs.contrasts],
        observed=inputs.watched[0] if inputs.watched else None,
        pairs=len(found.pairs),
    )
    parts: list[Figure | Section | None] = ledger_parts(ledger) if ledger else [None] * 7
    fallen, pushers, hardest, causes, sources, *when = parts
    return Page(
        name=facts.name,
        heading=words("heading"),
        answer=words.lines("answer"),
        more=words.lines("notes"),
        printed=_printed(inputs, found),
        lead=words("lead"),
        content=[
            fallen,
            pair_section(found.pairs, words),
            change_section(found.paths, words),
            learning_path_figure(found.paths),
            gap_figure(found.paths),
            squeezing_figure(inputs.squeezing, titles) if inputs.squeezing else None,
            try_section(inputs, found.pairs),
            pushers,
            hardest or _token_map(trainings),
            causes,
            sources,
            foresight_section(inputs.audit.foresight) if inputs.audit else None,
            contrast_section(trainings[-1], inputs.contrasts, words) if trainings else None,
            *answer_sections(inputs.answers, titles, found.prompts, words),
            *_compared_sections(inputs),
            _details(inputs, found, titles, words, when),
            _checks(inputs, found, titles, words),
        ],
        settings=facts.config_text,
        stages=facts.stages,
    )


def _details(
    inputs: ReportInputs,
    found: _Found,
    titles: Mapping[str, str],
    words: Words,
    pushes: Sequence[Figure | Section | None],
) -> Fold:
    """When it happened, through which weights, and how answers are coupled."""
    trainings, squeezing, kernel = inputs.trainings, inputs.squeezing, inputs.kernel
    content = [
        event_section(found.events, words),
        foreseen_figure(inputs.audit) if inputs.audit else None,
        *pushes,
        *map(decomposition_figure, reversed(trainings)),
        layer_section(trainings, words),
        training_figure(trainings),
        kernel_size_figure(kernel) if kernel else None,
        stability_figure(kernel) if kernel else None,
        repeater_section(squeezing.generations, titles, words) if squeezing else None,
        kind_section(found.paths, inputs.watched, words),
    ]
    return Fold("details", "Details", content)


def _checks(inputs: ReportInputs, found: _Found, titles: Mapping[str, str], words: Words) -> Fold:
    """How far the page can be trusted."""
    verdicts = verdict_table("training", found.verdicts, named=objective_name)
    content = [
        validity_section(inputs.trainings, words),
        replay_section(inputs.trainings, words),
        forecast_section(inputs.squeezing, titles, words) if inputs.squeezing else None,
        words.section("verdicts", verdicts) if inputs.trainings else None,
    ]
    return Fold("checks", "Checks", content)


def _token_map(trainings: Sequence[Training]) -> Figure | None:
    """The last training's map of its recorded steps."""
    maps = [training.token_map for training in trainings if training.token_map]
    return token_map_figure(maps[-1]) if maps else None


def _compared_sections(inputs: ReportInputs) -> list[Figure | Section | None]:
    """The papers' findings, and the remedies side by side."""
    compared = inputs.compared
    sections: list[Figure | Section | None] = []
    if compared.findings:
        sections.append(findings_section(compared.findings, "seeds, or prompts where there is one"))
    if compared.remedies is not None:
        sections += comparison_sections(compared.remedies)
    return sections


def _replacing(unknown: UnknownTokens) -> str:
    """The option that replaces characters which the tokenizer does not know; empty without any."""
    characters = json.dumps(dict.fromkeys(unknown.written, "TEXT"), ensure_ascii=False)
    return unknown.option or (
        f"--set {shlex.quote(f'data.replace={characters}')}" if unknown.written else ""
    )


def _printed(inputs: ReportInputs, found: _Found) -> str:
    """The first tables of the page for a terminal: answers that fell, and pairs that pulled."""
    ledger = inputs.ledger
    if ledger is None or not (answers := fallen_answers(ledger)[:_PRINTED]):
        head = ("pair", "Δ chosen", "Δ rejected", "Δ gap", "prompt")
        rows = [
            (
                pair.pair_id,
                *(number(v, sign=True) for v in (pair.chosen, pair.rejected, pair.gap)),
                excerpt(pair.prompt or "", 40, end=True),
            )
            for pair in found.pairs[:_PRINTED]
        ]
        return text_table(head, rows, "snnns") if rows else ""
    fallen = [
        (
            own.account.row.name,
            *(
                number(nats, sign=True)
                for nats in (own.change, own.own_chosen, own.own_rejected, own.others)
            ),
            prompt_of(own.account.row.name, ledger.rows, 32),
        )
        for own in answers
    ]
    pulled = [
        (
            push.example,
            *(number(n, sign=True) for n in (push.total, push.from_chosen, push.from_rejected)),
            prompt_of(push.example, ledger.rows, 32),
        )
        for push in summed_pushers(ledger)[:PAIRS]
        if push.total < 0
    ]
    first = "answer that fell" if answers[0].change < 0 else "answer that rose least"
    parts = ("own chosen", "own rejected", "other pairs")
    sides = ("nats", "through chosen", "through rejected")
    tables = (
        text_table((first, "nats", *parts, "prompt"), fallen, "snnnns"),
        text_table(("pair that pulled", *sides, "prompt"), pulled, "snnns"),
    )
    return "\n\n".join(tables)
