"""What to try next: a comparison of remedies made from the study, and maps of single pairs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from markupsafe import Markup

from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.report.inputs.study import ReportInputs
from dynolab.report.ledger.fallen import fallen_accounts
from dynolab.report.page import Section, Words, table
from dynolab.results.study import PairChange

_COMMAND = Markup('<pre class="command">{}</pre>')


def try_section(inputs: ReportInputs, pairs: Sequence[PairChange]) -> Section | None:
    """A table of commands that go on from a study, ready for pasting; None without any.

    **Arguments:** `pairs`: the last training's changes, worst first.
    """
    facts, trainings = inputs.facts, inputs.trainings
    commands = dict(inputs.compared.missing)
    if facts.explore_command and any(training.probes for training in trainings):
        commands = {"explore": facts.explore_command} | commands
    if facts.map_command and pairs:
        commands = {"map": with_pairs(facts.map_command, _to_map(inputs, pairs))} | commands
    if facts.remedies_command and trainings and trainings[-1].stage in PAIR_OBJECTIVES:
        commands = {"remedies": facts.remedies_command} | commands
    words = Words("study.html", facts=facts)
    rows = [(words(f"try_{name}") or name, _COMMAND.format(own)) for name, own in commands.items()]
    return words.section("try-next", table(("to", "run"), rows)) if rows else None


def _to_map(inputs: ReportInputs, pairs: Sequence[PairChange]) -> list[str]:
    """The training pair whose chosen answer fell most, with the one that pulled it down hardest."""
    if inputs.ledger is not None:
        for account in fallen_accounts(inputs.ledger):
            if account.row.split == "train":
                hardest = inputs.ledger.pushers(account.lines)[0].example
                return list(dict.fromkeys((account.row.name, hardest)))
    return [pairs[0].pair_id]


def with_pairs(command: str, pairs: list[str]) -> str:
    """The full command for pairs; quoted, so that no shell interprets an id."""
    # Unprintable characters, such as line ends, are escaped.
    listed = json.dumps(pairs, ensure_ascii=not all(map(str.isprintable, pairs)))
    return f"{command} --set {shlex.quote(f'analysis.pair_ids={listed}')}"
