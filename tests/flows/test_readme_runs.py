"""README's commands and the manual's file for DPO, run as they stand on a tiny model and 16 pairs.

Its Python runs in `tests/library`.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dynolab.data.rows import write_rows
from dynolab.data.sources.load import DataConfig, load_data
from tests.flows.analysed import Analysed
from tests.flows.lab import ROOT, Lab, ended_well

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    (dynolab .+)$", README, re.MULTILINE)
SETTINGS = re.findall(
    r"```yaml\n(name: dpo-only.*?)```", (ROOT / "docs/how-to/dpo-only.md").read_text(), re.DOTALL
)
PAGES = {f"{yaml.safe_load(text)['name']}.html" for text in SETTINGS} | {
    "my_study.html",
    "my_study-remedies.html",
    "pairs-audit.html",
}

ONE_PROCESS = """
import json, sys
from flows.cli import main
for sys.argv in json.loads(sys.argv[1]):
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""
"""Runs commands in turn and imports torch once."""


def in_file(text: str, folder: Path) -> str:
    """Writes a study's settings into a file: the command that takes it."""
    file = folder / f"{yaml.safe_load(text)['name']}.yaml"
    file.write_text(text)
    return f"dynolab study {file}"


@pytest.mark.services
def test_the_readme_runs(tmp_path: Path, servers: dict[str, str], analysed: Analysed) -> None:
    folder = tmp_path / "current"
    folder.mkdir()
    (folder / "model").symlink_to(analysed.folder(analysed.sft) / "model")
    write_rows(folder / "pairs.jsonl", load_data(DataConfig()).pairs[:16])
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment = Lab(tmp_path / "lab", **servers).environment | own
    del environment["DYNOLAB_HOME"]  # README's reader finds results in the current folder
    commands = [*COMMANDS, *(in_file(text, folder) for text in SETTINGS)]
    # One seed of two remedies is enough here.
    left_out = ("positive", "extended", "designed", "without-random", "without-similar")
    few = " ".join(["mitigation --set seeds=[0]", *(f"--set arms.{arm}=null" for arm in left_out)])
    words = [shlex.split(command.replace("mitigation", few), comments=True) for command in commands]
    ended_well(
        subprocess.Popen(
            [sys.executable, "-c", ONE_PROCESS, json.dumps(words)],
            cwd=folder,
            env=environment,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    )
    assert {page.name for page in (folder / ".dynolab" / "reports").iterdir()} >= PAGES
