"""What to try next: a comparison of remedies made from the study, and maps of single pairs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import numpy as np
from markupsafe import Markup

from dynolab.data.rows import Split
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.page import Section, section
from dynolab.report.style import objective_name
from dynolab.results.study import PairChange

_COMMAND = Markup('<p>{}</p><pre class="command">{}</pre>')
_COMPARISONS = {
    "mitigation": "See the remedies against squeezing side by side on this page, over several "
    "seeds: run this, then the study again.",
    "reproduction": "See which of the papers’ findings on finetuning appear, likewise:",
}


def remedy(inputs: ReportInputs, changes: Mapping[Split, np.ndarray]) -> str | Markup:
    """What to try, in a sentence."""
    if not inputs.facts.remedies_command or not changes:
        return ""
    every = np.concatenate(list(changes.values()))
    text = "To hold them up, try" if every.mean() < 0 else "To raise them further, try"
    return Markup(
        "{} a smaller push on rejected answers, or training without the pairs that lower the "
        'others: <a href="#try-next">one command compares both</a>.'
    ).format(text)


def try_section(inputs: ReportInputs, pairs: list[PairChange]) -> Section | None:
    """Commands that go on from this study, ready for pasting."""
    facts, commands = inputs.facts, []
    if facts.remedies_command:
        name = objective_name(inputs.trainings[-1].stage) if inputs.trainings else "training"
        commands.append(
            (
                f"Compare {name} as it was with a smaller push on rejected answers, and with "
                "training without the pairs that lower the others’ chosen answers most, over two "
                "seeds. The file is ready, beside this page:",
                facts.remedies_command,
            )
        )
    if facts.map_command and pairs:
        commands.append(
            (
                "See which token of a pair pushes which, before and after training (for another "
                f"pair replace the id; {facts.name}-pairs.jsonl beside this page lists the watched "
                "ones, worst first):",
                with_pair(facts.map_command, pairs[0].pair_id),
            )
        )
    if facts.explore_command and any(training.probes for training in inputs.trainings):
        commands.append(
            (
                "Ask in the browser who pushed any answer, also one that you type, token by token, "
                "and what if some pairs were left out. This opens the newest study; to name "
                "another, add report/ and its key:",
                facts.explore_command,
            )
        )
    commands += [
        (_COMPARISONS.get(name, f"Run {name}:"), command)
        for name, command in inputs.compared.missing.items()
    ]
    if not commands:
        return None
    return section(
        "try-next",
        "Try next",
        "",
        *(_COMMAND.format(about, command) for about, command in commands),
    )


def with_pair(command: str, pair: str) -> str:
    """The full command for a pair; quoted, so that no shell interprets the id."""
    # Unprintable characters, such as line ends, are escaped.
    listed = json.dumps([pair], ensure_ascii=not pair.isprintable())
    return f"{command} --set {shlex.quote(f'analysis.pair_ids={listed}')}"
