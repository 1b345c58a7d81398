"""What to try next: a comparison of remedies made from the study, and maps of single pairs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from markupsafe import Markup

from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.report.inputs.study import ReportInputs, StudyFacts
from dynolab.report.ledger.fallen import Side, fallen_accounts, summed_sides
from dynolab.report.page import Section, section
from dynolab.report.style import objective_name
from dynolab.results.study import PairChange

_COMMAND = Markup('<p>{}</p><pre class="command">{}</pre>')
_DOSE, _FILTER = (
    "a smaller push on rejected answers",
    "training without the pairs that pull hardest",
)
_TRIED: dict[Side | None, str] = {
    "rejected": f"first {_DOSE}, then {_FILTER}",
    "chosen": f"first {_FILTER}, then {_DOSE}",
    None: f"{_DOSE}, or {_FILTER}",
}
"""By the side that pulled the answers that fell most down."""
_FILTERED = f"{_FILTER}, as forces chose the push on rejected answers already"
"""After a training with a designed dose."""

_COMPARISONS = {
    "mitigation": "See the remedies against squeezing side by side on this page, over several "
    "seeds: run this, then the study again.",
    "reproduction": "See which of the papers’ findings on finetuning appear, likewise:",
}


def remedy(inputs: ReportInputs) -> str | Markup:
    """What to try, in a sentence: first what acts on the side that pulled answers down."""
    if not inputs.facts.remedies_command:
        return ""
    tried = _FILTERED if inputs.facts.designed_dose else _TRIED[_side_that_pulled(inputs)]
    return Markup('Try {}: <a href="#try-next">one command compares them</a>.').format(tried)


def _side_that_pulled(inputs: ReportInputs) -> Side | None:
    """The side that pulled the answers that fell most down, if the other did not half as much."""
    singles = [] if inputs.ledger is None else fallen_accounts(inputs.ledger)
    if inputs.ledger is None or not singles:
        return None
    sides = summed_sides(inputs.ledger, singles)
    least = min(sides, key=sides.__getitem__)
    others = sum(min(nats, 0.0) for side, nats in sides.items() if side != least)
    return least if sides[least] < min(2 * others, 0.0) else None


def try_section(inputs: ReportInputs, pairs: list[PairChange]) -> Section | None:
    """Commands that go on from a study with trainings, ready for pasting."""
    facts, commands, last = inputs.facts, [], inputs.trainings[-1].stage
    if facts.remedies_command and last in PAIR_OBJECTIVES:
        name = objective_name(last)
        commands.append(
            (
                f"Compare {name} as it was with {_other_arms(facts)} without the pairs that the "
                "audit ranks worst, or that the account names, over three seeds:",
                facts.remedies_command,
            )
        )
    if facts.map_command and pairs:
        commands.append(
            (
                "See which token of a pair pushes which, before and after training (for other "
                f"pairs replace the ids; {facts.name}-pairs.jsonl lists the watched training "
                "pairs, worst first):",
                with_pairs(facts.map_command, _to_map(inputs, pairs)),
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
        note=_files(facts),
    )


def _other_arms(facts: StudyFacts) -> str:
    """The arms of the remedies' file, up to its filters."""
    if facts.designed_dose:
        return "training"
    return (
        "smaller pushes on rejected answers (of a given share, and as forces choose it), and with "
        "training"
    )


def _files(facts: StudyFacts) -> str:
    """Where the named files are; a page that was moved has none beside it."""
    sentences = []
    if facts.reports:
        sentences.append(f"The study’s files are in {facts.reports}, under its name.")
        if not Path(facts.reports).is_absolute():
            sentences.append("Paths begin in the folder that the study was started in.")
    if facts.path_command:
        sentences.append(
            f"“{facts.path_command}” prints the folder of the result, which holds them as "
            "pairs.jsonl and remedies.yaml."
        )
    return " ".join(sentences)


def _to_map(inputs: ReportInputs, pairs: list[PairChange]) -> list[str]:
    """The training pair whose chosen answer fell most, with the one that pulled it down hardest."""
    if inputs.ledger is not None:
        for account in fallen_accounts(inputs.ledger):
            if account.row.split == "train":
                hardest = inputs.ledger.pushers(account)[0].example
                return list(dict.fromkeys((account.row.name, hardest)))
    return [pairs[0].pair_id]


def with_pairs(command: str, pairs: list[str]) -> str:
    """The full command for pairs; quoted, so that no shell interprets an id."""
    # Unprintable characters, such as line ends, are escaped.
    listed = json.dumps(pairs, ensure_ascii=not all(map(str.isprintable, pairs)))
    return f"{command} --set {shlex.quote(f'analysis.pair_ids={listed}')}"
