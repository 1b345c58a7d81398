"""The report of a study: one offline page, its figures as files, and its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dynolab.claims.answers import assess_answers
from dynolab.claims.study import assess
from dynolab.claims.verdict import Verdict
from dynolab.data.rows import write_rows
from dynolab.data.unknown import UnknownTokens, about_auto
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.events import Event, events_of
from dynolab.probes.pairs import complete_pairs, pair_changes
from dynolab.probes.paths import learning_paths
from dynolab.report.audit import foreseen_figure, foresight_section
from dynolab.report.comparison.mitigation import comparison_sections
from dynolab.report.comparison.reproduction import findings_section
from dynolab.report.figure import Figure
from dynolab.report.forces.kernel import kernel_size_figure, stability_figure
from dynolab.report.forces.token_map import ONE_STEP, hardest_pull_figure, token_map_figure
from dynolab.report.inputs.study import Compared, ReportInputs, Training
from dynolab.report.ledger.blocks import blocks_figure
from dynolab.report.ledger.heat_map import ledger_map_figure
from dynolab.report.ledger.pullers import puller_section
from dynolab.report.ledger.pushers import pusher_section
from dynolab.report.ledger.sources import sources_figure
from dynolab.report.ledger.steps import step_figure
from dynolab.report.ledger.waterfall import waterfall_figure
from dynolab.report.page import (
    Fold,
    Page,
    Section,
    page_html,
    sections_of,
    write_page,
    write_summary,
    write_text,
)
from dynolab.report.study.answer_kinds import answer_kinds
from dynolab.report.study.answers import answer_section, hallucination_section
from dynolab.report.study.culprits import worst_answer
from dynolab.report.study.ladder import ladder_figure, ladder_section
from dynolab.report.study.layers import layer_figure
from dynolab.report.study.learning_paths import Paths, gap_figure, learning_path_figure, stages_of
from dynolab.report.study.opening import (
    answer,
    chosen_changes,
    margins_learned,
    question,
    tiles,
    unexplained,
)
from dynolab.report.study.paths_svg import paths_svg
from dynolab.report.study.squeezing import forecast_section, repeater_section, squeezing_figure
from dynolab.report.study.step_forces import decomposition_figure, prediction_figure
from dynolab.report.study.summary import changes_since_start, summarise
from dynolab.report.study.tables import (
    contrast_section,
    event_section,
    kind_section,
    pair_section,
    replay_section,
)
from dynolab.report.study.training_curves import training_figure
from dynolab.report.study.try_next import remedy, try_section
from dynolab.report.study.validity import outside_radius, validity_figure, validity_section
from dynolab.report.style import SPLITS, objective_name
from dynolab.report.text import join, number
from dynolab.report.verdicts import verdict_section
from dynolab.results.study import PairChange, TokenMap

_CLAIMS = (
    "Claims on chosen, rejected and unrelated answers follow Ren & Sutherland, Learning "
    "Dynamics of LLM Finetuning (arXiv 2407.10490), on training prompts: made about SFT and DPO, "
    "and judged for related objectives too; those on forces check the analysis, on all watched "
    "prompts. Appears: every interval lies on the expected side; does not: one lies wholly on the "
    "other side; unclear: neither. A peak's step is chosen on the other half of the prompts, so "
    "that noise alone makes no peak."
)


def write_report(inputs: ReportInputs, folder: Path) -> dict[str, Any]:
    """Writes a study's report.

    **Arguments:** `inputs`: what was measured; `folder`: where the files go, created if missing.

    **Returns** the content of `summary.json`: `metrics` (a flat map of finite floats), `verdicts`
    and `replay`.

    Files: `report.html` (self-contained), `summary.json`, `paths.svg`, per figure
    `figures/<name>.html` and `figures/<name>.json` (plotly), beside one `figures/plotly.min.js`;
    and after preference training `pairs.jsonl` (`PairChange`, worst first).
    """
    found = _Found.of(inputs)
    changes = changes_since_start(found.paths)
    summary = summarise(inputs, changes, found.verdicts, found.events)
    write_page(_page(inputs, found), folder, "report.html")
    write_summary(summary, folder)
    if found.pairs:
        write_rows(folder / "pairs.jsonl", found.pairs)
    if drawing := paths_svg(found.paths):
        write_text(folder / "paths.svg", drawing)
    return summary


def report_page_html(inputs: ReportInputs, coming: Sequence[str]) -> str:
    """The page of a study that still runs: `coming` names the stages that have not ended.

    What needs the finished study is not on this one: its table of pairs, and the explorer.
    """
    later = dict.fromkeys(("map_command", "explore_command", "path_command"), "")
    unfinished = replace(inputs, facts=inputs.facts.model_copy(update=later))
    return page_html(replace(_page(unfinished, _Found.of(inputs)), coming=tuple(coming)))


@dataclass(frozen=True)
class _Found:
    """What the inputs say: paths, verdicts, events by objective, and pairs, worst first."""

    paths: Paths
    verdicts: tuple[Verdict, ...]
    events: dict[str, tuple[Event, ...]]
    pairs: list[PairChange]
    prompts: dict[str, str]

    @classmethod
    def of(cls, inputs: ReportInputs) -> _Found:
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
        verdicts = (
            *assess(
                {training.stage: paths.get((training.stage, "train")) for training in trainings},
                [row for training in trainings for row in training.forces],
            ),
            *assess_answers(inputs.answers, {t.name: t.stage for t in trainings}),
        )
        prompts = {row.pair_id: row.prompt for row in inputs.watched if row.split == "train"}
        return cls(
            paths=paths,
            verdicts=verdicts,
            events={
                stage: tuple(events_of(own))
                for (stage, split), own in paths.items()
                if split == "train"
            },
            pairs=_pairs(inputs, paths, prompts),
            prompts=prompts,
        )


def _page(inputs: ReportInputs, found: _Found) -> Page:
    """Question and answer, the pictures that show it, what to try, the account; then the rest."""
    facts, trainings, squeezing, ledger = (
        inputs.facts,
        inputs.trainings,
        inputs.squeezing,
        inputs.ledger,
    )
    titles = {training.name: objective_name(training.stage) for training in trainings}
    on_pairs = trainings and trainings[-1].stage in PAIR_OBJECTIVES
    changes = chosen_changes(inputs, found.paths) if on_pairs else {}
    margins = margins_learned(inputs, found.paths) if on_pairs else {}
    worst = pair_section(found.pairs, trainings[-1].stage) if found.pairs else None
    return Page(
        name=facts.name,
        heading=question(trainings),
        answer=answer(inputs, changes, margins, remedy(inputs)),
        more=worst_answer(ledger) if ledger and changes else (),
        lead=_lead(inputs, found.paths),
        tiles=tiles(inputs, found.paths, found.verdicts) if trainings else (),
        content=[
            pusher_section(ledger) if ledger else worst,
            puller_section(ledger) if ledger else None,
            _token_map(inputs, found.pairs),
            try_section(inputs, found.pairs) if trainings else None,
            learning_path_figure(found.paths),
            gap_figure(found.paths),
            waterfall_figure(ledger) if ledger else None,
            foresight_section(inputs.audit.foresight) if inputs.audit else None,
            squeezing_figure(squeezing, titles) if squeezing else None,
            contrast_section(trainings[-1], inputs.contrasts) if inputs.contrasts else None,
            *answer_kinds(inputs.answers, titles),
            answer_section(inputs.answers, titles) if inputs.answers else None,
            *_compared_sections(inputs.compared),
            _details(inputs, found, titles),
            _checks(inputs, found, titles),
        ],
        settings=facts.config_text,
        stages=facts.stages,
    )


def _details(inputs: ReportInputs, found: _Found, titles: Mapping[str, str]) -> Fold:
    """What a reader may want to know more of."""
    trainings, squeezing, kernel, ledger = (
        inputs.trainings,
        inputs.squeezing,
        inputs.kernel,
        inputs.ledger,
    )
    return Fold(
        "details",
        "Details",
        "When it happened, through which weights, step by step, and how answers are coupled.",
        [
            event_section(found.events) if found.events else None,
            foreseen_figure(inputs.audit) if inputs.audit else None,
            step_figure(ledger) if ledger else None,
            ledger_map_figure(ledger) if ledger else None,
            blocks_figure(ledger) if ledger else None,
            sources_figure(ledger) if ledger else None,
            *map(decomposition_figure, reversed(trainings)),
            layer_figure(trainings),
            training_figure(trainings),
            kernel_size_figure(kernel) if kernel else None,
            stability_figure(kernel) if kernel else None,
            hallucination_section(inputs.answers, titles, found.prompts)
            if inputs.answers
            else None,
            repeater_section(squeezing.generations, titles) if squeezing else None,
            kind_section(found.paths, inputs.watched),
        ],
    )


def _checks(inputs: ReportInputs, found: _Found, titles: Mapping[str, str]) -> Fold:
    """How far the page can be trusted."""
    trainings, squeezing = inputs.trainings, inputs.squeezing
    replays = [row for training in trainings for row in training.replay]
    return Fold(
        "checks",
        "Checks",
        unexplained(found.verdicts)
        + "Whether the analysed steps are those of the training, how far first order carries, what "
        "the theory foretells, and which known phenomena appear.",
        [
            replay_section(replays) if replays else None,
            prediction_figure(trainings),
            validity_figure(trainings),
            validity_section(trainings),
            ladder_figure(squeezing.ladder, titles) if squeezing else None,
            ladder_section(squeezing.ladder, titles) if squeezing else None,
            forecast_section(squeezing.forecasts, titles) if squeezing else None,
            verdict_section(found.verdicts, _CLAIMS) if trainings else None,
        ],
    )


def _pairs(inputs: ReportInputs, paths: Paths, prompts: Mapping[str, str]) -> list[PairChange]:
    """What the study's last training did to its pairs, if it trained on pairs."""
    last = inputs.trainings[-1].stage if inputs.trainings else ""
    if last not in PAIR_OBJECTIVES or (last, "train") not in paths:
        return []
    return pair_changes(paths[last, "train"], prompts)


def _token_map(inputs: ReportInputs, pairs: Sequence[PairChange]) -> Figure | None:
    """The account's map; without one, the last training's map of its recorded steps."""
    if inputs.ledger is not None and inputs.ledger.token_map is not None:
        return hardest_pull_figure(inputs.ledger.token_map)
    maps = [training.token_map for training in inputs.trainings if training.token_map]
    return token_map_figure(maps[-1], _change(pairs, maps[-1])) if maps else None


def _change(pairs: Sequence[PairChange], token_map: TokenMap) -> str:
    """What became of the answer that a map is on, over the training."""
    for place, pair in enumerate(pairs, start=1):
        if pair.pair_id == token_map.observed_id and pair.chosen < 0:
            fall = number(-pair.chosen)
            return (
                "Of the recorded steps’ pushes on answers that fell most this is the strongest "
                f"(the answer fell by {fall} nats in all, number {place} of the training pairs); "
                f"pulls at other steps are named above, and have no map. {ONE_STEP}"
            )
    return ""


def _compared_sections(compared: Compared) -> list[Section]:
    """The papers' findings, and the remedies side by side."""
    sections = []
    if compared.findings:
        unit = "seeds, or prompts where there is one"
        sections.append(findings_section(compared.findings, unit))
    if compared.remedies is not None:
        sections += sections_of(comparison_sections(compared.remedies))
    return sections


def _lead(inputs: ReportInputs, paths: Paths) -> str:
    seed = "" if inputs.facts.seed is None else f" Seed {inputs.facts.seed}."
    counts = {
        stage: [
            f"{len(paths[stage, split].pairs)} {name} prompts"
            for split, name in SPLITS.items()
            if (stage, split) in paths
        ]
        for stage in stages_of(paths)
    }
    alike = len({tuple(own) for own in counts.values()}) <= 1
    watched_on = [
        join(own) if alike else f"{join(own)} under {objective_name(stage)}"
        for stage, own in list(counts.items())[-1 if alike else 0 :]
    ]
    rows = f" {inputs.facts.rows}." if inputs.facts.rows else ""
    watched = f" Watched on {'; '.join(watched_on)}." if counts else ""
    notes = [
        note(training)
        for note in (_left_out, _alarmed, outside_radius)
        for training in inputs.trainings
    ]
    auto = f" {about_auto(inputs.facts.read_otherwise)}." if inputs.facts.read_otherwise else ""
    return (
        f"{seed}{rows}{watched}{''.join(notes)}{_unknown(inputs.trainings)}"
        f"{auto} Changes are in nats of "
        "log-probability, summed over an answer’s tokens; brackets hold 95% intervals over prompts."
    ).strip()


def _alarmed(training: Training) -> str:
    """States that the alarm rang, and whether it ended the training."""
    ring = training.alarm
    if ring is None:
        return ""
    done = "ended" if ring.stopped else "rang during"
    return (
        f" The alarm {done} {objective_name(training.stage)} at step {ring.step}, where the gap "
        f"y* − y⁺ had grown by {number(ring.rise)} to {number(ring.gap)} nats."
    )


def _unknown(trainings: Sequence[Training]) -> str:
    """States how many tokens of the answers the tokenizer does not know, of the last training."""
    counts = [own for each in trainings if (own := UnknownTokens.of_metrics(each.rows)).tokens]
    return f" {counts[-1]}." if counts else ""


def _left_out(training: Training) -> str:
    """States how many pairs were too long for the context, which nothing else on the page shows."""
    dropped, cut = (training.rows.get(f"data/rows_{end}", 0) for end in ("dropped", "truncated"))
    if not dropped and not cut:
        return ""
    kept = training.rows.get("data/rows_kept", 0)
    parts = ([f"left out {dropped}"] if dropped else []) + ([f"cut {cut}"] if cut else [])
    return (
        f" {objective_name(training.stage)} {' and '.join(parts)} of {kept + dropped} pairs as "
        "longer than the model’s context."
    )
