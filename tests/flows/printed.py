"""The commands that the pages of a small study print, each tried in this process."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from typer.testing import CliRunner

from flows.cli import app
from flows.flow import Step, plan
from flows.mitigation import MitigationParameters, mitigation_steps
from flows.parameters.parse import load_parameters
from flows.study.flow import STUDY
from tasks.arm import study_command
from tasks.report import REMEDIES
from tasks.training import PREFERENCE
from tests.flows.in_process import InProcess

PLAIN = {"engine": {"kind": "plain", "ranks": 1}, "steps": 2, "batch_size": 4}
SETTINGS: dict[str, Any] = {
    "name": "printed",
    "data": {"world": {"entities": 20, "train_pairs": 12, "heldout_pairs": 6, "corpus_rows": 64}},
    "base": {"training": PLAIN},
    "sft": PLAIN,
    "preference": PLAIN | {"objective": {"name": "dpo"}, "probe_every": 1},
    "probe": {"answers": 1, "answer_tokens": 4},
    "kernel": None,
}


class Printed:
    """A small study in a home, and the commands that it prints."""

    def __init__(self, folder: Path) -> None:
        self.home, self.file = folder / "home", folder / "study.yaml"
        self.file.write_text(yaml.safe_dump(SETTINGS))
        self.lab = InProcess(self.home)
        with patch.dict(os.environ, {"DYNOLAB_HOME": str(self.home)}):
            self.results = self.lab.run_plan(self.lab.plan(STUDY, SETTINGS))
        report = self.results["report"]
        self.remedies = self.home / "reports" / f"printed-{REMEDIES}"
        self.remedies.parent.mkdir()
        self.remedies.write_text(self.lab.text(report, REMEDIES))
        page = self.lab.text(report, "report.html")
        commands = re.findall('<pre class="command">(.*?)</pre>', page, re.DOTALL)
        commands += re.findall("“(dynolab path .*?)”", page)
        self.on_page = [html.unescape(command) for command in commands]

    def run(self, command: str, *more: str) -> str:
        """What a printed command prints; its failure is an AssertionError."""
        _, *words = shlex.split(command)
        with patch.dict(os.environ, {"DYNOLAB_HOME": str(self.home)}):
            done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, (command, done.output, done.exception)
        return done.output

    def keys(self, command: str) -> dict[str, str | None]:
        """Step → key, by the command's plan."""
        stages = json.loads(self.run(command, "--plan", "--json").splitlines()[-1])["stages"]
        return {stage["step"]: stage["key"] for stage in stages}

    def checks(self) -> Iterator[tuple[str, bool]]:
        """Each command, and whether it is of the runs that it is printed for."""
        key = {name: result.key for name, result in self.results.items()}
        for command in self.on_page:
            match shlex.split(command)[1]:
                case "mitigation":
                    more_seeds = f"{command} --set 'seeds=[0, 1, 2, 3]'"
                    for remedies in (command, more_seeds):
                        yield remedies, self.keys(remedies)["sft-0"] == key["sft"]
                case "path":
                    yield command, Path(self.run(command).strip()).is_dir()
                case "explore":  # a server, which tests of the explorer start
                    yield command, "explore" in self.run(command, "--help")
                case _:
                    yield command, bool(self.keys(command))
        comparison = load_parameters(MitigationParameters, self.remedies, [])
        steps = {step.name: step for step in mitigation_steps(comparison)}
        for label, arm in comparison.arms.items():
            command = study_command(label, arm.facts, comparison.training.steps)
            if command:
                trained = steps[f"{label}-0"].config
                step = Step("as-the-run", PREFERENCE, trained, {"data": "data", "model": "sft"})
                (run,) = plan([step], self.lab.platform, self.results)
                printed = command.replace("FILE", shlex.quote(str(self.file)))
                yield printed, self.keys(printed)["preference"] == run.key
