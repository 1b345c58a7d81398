"""Prints what a run has given: stages, what became of its rows, its answer, and what is next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape

from dynolab.costs.stage import duration
from dynolab.data.sources.config import rows_line
from dynolab.data.unknown import UnknownTokens
from flows.flow import Parameters, Results, StagedFlow
from flows.parameters import load_parameters
from tasks.report import REMEDIES, remedies_command
from tasks.runtime.system.invocation import invocation


def page_answer(folder: Path) -> list[str]:
    """The sentences that a page begins with; none of a page without."""
    from dynolab.report.page import ANSWER  # plotly takes a while to import

    file = folder / ANSWER
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def show_results(
    console: Console,
    flow: str,
    results: Results,
    page: Path,
    seconds: float,
    answer: Sequence[str],
) -> None:
    """Prints what became of a run's rows, its page's place, its `answer`, and where runs show."""
    for line in _about_rows(results):
        console.print(line, highlight=False, soft_wrap=True)
    for line in _overlong(results):
        console.print(line, highlight=False)
    for name, result in results.items():
        if missing := result["metrics"].get("probes/missing", 0):
            console.print(
                f"{name}: {missing:.0f} rows could not be made; missing.jsonl says why",
                highlight=False,
            )
        asked, parsed = (result["metrics"].get(f"judge/{key}", 0) for key in ("asked", "parsed"))
        if parsed < asked:
            console.print(
                f"{name}: {asked - parsed:.0f} of {asked:.0f} verdicts are missing; the "
                "page says why",
                highlight=False,
            )
    cached = sum(result["cached"] for result in results.values())
    stages = f"{len(results)} stages, of which {cached} cached"
    console.print(f"\n{flow:7} {seconds:.1f} s, {stages}", highlight=False)
    console.print(f"report  {page}", highlight=False, soft_wrap=True)
    for sentence in ("", *answer, "") if answer else ():
        # A line end within a command would end it where it is pasted.
        console.print(sentence, markup=False, highlight=False, soft_wrap=" --set " in sentence)
    console.print(
        f"later   [bold]{escape(invocation())} up[/bold] shows these runs in Prefect and MLflow",
        soft_wrap=True,
    )


def _overlong(results: Results) -> Iterator[str]:
    """Rows that were too long; trainings with the same numbers share a line."""
    names: dict[tuple[int, int], list[str]] = {}
    for name, result in results.items():
        dropped, truncated = (
            int(result["metrics"].get(f"data/rows_{end}", 0)) for end in ("dropped", "truncated")
        )
        names.setdefault((dropped, truncated), []).append(name)
    for (dropped, truncated), own in names.items():
        if dropped or truncated:
            who = ", ".join(own[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
            yield (
                f"{who}: longer than the model's context: {dropped} rows dropped, {truncated} "
                "prompts truncated"
            )


def _about_rows(results: Results) -> Iterator[str]:
    """What became of the data's rows, and what the tokenizer does not know.

    The counts of rows are told where they are read; what is unknown may spoil any run, and is told
    after each.
    """
    computed = (result["metrics"] for result in results.values() if not result["cached"])
    yield from filter(None, dict.fromkeys(map(rows_line, computed)))
    metrics = (result["metrics"] for result in results.values())
    unknown = max(map(UnknownTokens.of_metrics, metrics), key=lambda found: found.total)
    if unknown.tokens:
        option = unknown.option and f": add {unknown.option}"
        yield f"[yellow]{escape(f'{unknown}{option}')}[/yellow]"


def show_remedies(console: Console, name: str, page: Path, results: Results) -> None:
    """Prints the command that compares a study's remedies, if its file lies beside the page."""
    file = page.with_name(f"{name}-{REMEDIES}")
    if file.exists():
        console.print(
            f"next    {remedies_command(name)}  # {_remedies_time(file, results)}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )


def show_more_seeds(
    console: Console, flow: StagedFlow[Parameters], file: Path | None, changes: Sequence[str]
) -> None:
    """Prints the command that runs more seeds, after a comparison of a single one."""
    asked = load_parameters(flow.parameters, file, changes)
    seeds: tuple[int, ...] = getattr(asked, "seeds", ())
    if len(seeds) != 1:
        return
    kept = [change for change in changes if change.partition("=")[0].strip() != "seeds"]
    own: Any = load_parameters(flow.parameters, file, kept)
    if len(own.seeds) == 1:
        kept.append(f"seeds={[seeds[0] + further for further in range(3)]}")
    options = (word for change in kept for word in ("--set", change))
    words = [flow.name, *([str(file)] if file else []), *options]
    console.print(
        f"next    {invocation()} {shlex.join(words)}  # more seeds; this one’s trainings are kept",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )


def _remedies_time(file: Path, results: Results) -> str:
    """About how long a comparison of remedies takes, by the study's own trainings."""
    settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    seeds, arms = len(settings["seeds"]), len(settings["arms"])
    once = {
        name: float(results[name]["metrics"].get("seconds", 0.0)) if name in results else 0.0
        for name in ("sft", "preference")
    }
    seconds = seeds * (once["sft"] + arms * once["preference"])
    return f"at least {duration(seconds)}: {arms} trainings and an audit with each of {seeds} seeds"
