"""Writes a study file for a model and pairs, with comments and what it will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dynolab.costs.machines import this_machine
from dynolab.costs.stage import UNTIMED_SECONDS, duration
from dynolab.data.sources.load import load_data
from dynolab.data.unknown import (
    UnknownTokens,
    about_auto,
    auto_reads_otherwise,
    in_words,
    unknown_tokens,
)
from dynolab.errors import ConfigError
from dynolab.hub import resolve_commit
from flows.init.sizes import Sizes, measured_sizes
from flows.init.template import (
    TEMPLATE,
    beside,
    comment,
    format_lines,
    quoted,
    replace_lines,
    settings_for,
)
from flows.parameters import parse_parameters
from flows.stage_costs import PlannedCosts
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.data import file_for_model


@dataclass(frozen=True)
class WrittenStudy:
    """A study file that was written: what to know before it runs, and how long it takes."""

    notes: list[str]
    sizes: Sizes
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """For programs; `row` and `longest` are in tokens."""
        return {"notes": self.notes, "sizes": asdict(self.sizes), "seconds": round(self.seconds)}


def write_study(file: Path, *, model: str, data: Path, program: str) -> WrittenStudy:
    """Writes a study file for a model, which is a folder or a Hub name, and pairs.

    **Raises** `ConfigError` for a file that exists, and for rows or a model that cannot be read.
    """
    from models.language import load_tokenizer

    if file.exists():
        raise ConfigError("file", str(file), "exists; name another, or delete it")
    folder = Path(model).expanduser()
    if not folder.is_dir():
        resolve_commit("model", model, field="model")
    source = beside(file, folder) if folder.is_dir() else model
    weights = str(folder) if folder.is_dir() else model
    config = file_for_model(data, weights)
    tokenizer = load_tokenizer(weights)
    writer = tokenizer if config.chat_model else None
    loaded = load_data(config, writer)
    answers = [text for pair in loaded.pairs for text in (pair.chosen, pair.rejected) if text]
    unknown = unknown_tokens(tokenizer, answers)
    replace = {
        character: plain
        for character, plain in unknown.replacements.items()
        if not unknown_tokens(tokenizer, [plain]).tokens
    }
    if replace:
        config = config.model_copy(update={"replace": replace})
        loaded = load_data(config, writer)
    sizes = measured_sizes(weights, tokenizer, loaded)
    settings = settings_for(loaded, sizes) | {
        "sizes": comment(str(sizes)),
        "model": quoted(source),
        "data": quoted(beside(file, data)),
        "format": format_lines(config, source),
        "replace": replace_lines(config),
        "name": file.stem,
        "file": file,
        "program": program,
    }
    untimed = TEMPLATE.format(**settings, time="#")
    parameters = parse_parameters(StudyParameters, untimed, str(file), folder=file.resolve().parent)
    seconds = _seconds(parameters)
    time = _time(seconds)
    file.write_text(TEMPLATE.format(**settings, time=comment(time)), encoding="utf-8")
    notes = [settings["rows"], f"Columns {loaded.read}.", str(sizes)]
    if unknown.tokens:
        notes.append(_about_unknown(unknown, replace, sizes.unknown))
    if config.chat == "plain":
        notes.append(
            "The model has no chat template: messages are written as turns of Human and Assistant."
        )
    notes.append(
        f"The file finetunes on the chosen answers first (SFT, learning rate "
        f"{settings['sft_rate']}), as papers do; if your DPO starts from the model as it is, write "
        "`sft: null` there."
    )
    notes.append(
        f"DPO’s learning rate ({settings['preference_rate']}), β (0.1) and steps "
        f"({settings['steps']}) are guesses, enough for a first run: if you know those of your "
        "training, write them into the file, under `preference`."
    )
    notes.append(time)
    if folder.is_dir() and (texts := auto_reads_otherwise(weights, None, folder)):
        notes.append(f"{about_auto(texts)}.")
    return WrittenStudy(notes, sizes, sum(seconds.values()) + UNTIMED_SECONDS)


def _about_unknown(
    written: UnknownTokens, replace: Mapping[str, str], replaced: UnknownTokens
) -> str:
    """What the tokenizer does not know of the rows as written, and as the file replaces it."""
    if not replace:
        return f"{written}."
    left = (
        f"{replaced.tokens} ({replaced.tokens / replaced.total:.1%})" if replaced.tokens else "none"
    )
    return f"{written.counted}: the file replaces {in_words(replace)}, which leaves {left}."


def _seconds(parameters: StudyParameters) -> dict[str, float]:
    """Stage → how long it will take here, as `--plan` estimates it."""
    machine, steps = this_machine(), study_steps(resolved(parameters))
    costs = PlannedCosts(steps, machine)
    return {step.name: cost.hours * 3600 for step in steps if (cost := costs.of(step)) is not None}


def _time(seconds: dict[str, float]) -> str:
    seconds = {**seconds, "start and page": UNTIMED_SECONDS}
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:3]
    parts = ", ".join(f"{name} {duration(seconds[name])}" for name in longest)
    return (
        f"It takes about {duration(sum(seconds.values()))} on this machine alone "
        f"({parts}; --plan estimates every stage)."
    )
