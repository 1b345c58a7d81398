"""The command `verify`, and stages that are computed again alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from flows.cli import file_and_stages
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters
from flows.study.steps import study_steps
from tasks.runtime.system.secret_files import own_folder
from tests.flows.analysed import Analysed
from tests.flows.conftest import Command
from tests.flows.in_process import short
from tests.flows.lab import SMALL


def test_a_damaged_result_is_named_and_removed_with_what_is_computed_again(
    analysed: Analysed, command: Command, tmp_path: Path
) -> None:
    store = own_folder(tmp_path / "home") / "store"
    # Other tests' results may lie beside these.
    for result in (analysed.data, analysed.base, analysed.sft):
        place = Path("stages", result.stage, result.key)
        shutil.copytree(analysed.platform.settings.home / "store" / place, store / place)
    assert "3 results and resume states" in command("verify").out
    (file,) = store.glob("stages/base/*/attempt-*/model/model.safetensors")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    base, sft = short(analysed.base), short(analysed.sft)
    wrong = f"{base}: model/model.safetensors has other bytes than were committed"
    assert f"damaged  {wrong}\n" in command("verify", code=1).out
    assert "0 damaged" in command("verify", "data", sft).out
    *lines, last = command("verify", "--remove", "--json").out.splitlines()
    assert f"damaged  {wrong}; removed" in lines
    again = f"again    {base}: the command that made it computes it again"
    assert f"{again}; where its bytes then differ, also {sft}" in lines
    (damage,) = json.loads(last)["damaged"]
    assert (damage["result"], damage["removed"]) == (base, True)
    printed = command("verify").out
    assert "1 results were computed from others that are no longer there" in printed
    assert "2 results and resume states" in printed


@pytest.mark.parametrize(
    ("words", "fresh", "expected"),
    [
        ([], False, (None, False)),
        ([], True, (None, True)),
        (["report"], True, (None, ("report",))),
        (["mine.yaml", "report", "probe"], True, ("mine.yaml", ("report", "probe"))),
        (["sft-forces", "mine.yaml"], True, ("mine.yaml", ("sft-forces",))),
        (["builtin.yaml"], True, ("builtin.yaml", True)),
        (["no-such-file"], False, ("no-such-file", False)),
    ],
)
def test_words_beside_fresh_are_stages(
    words: list[str], fresh: bool, expected: tuple[str | None, bool | tuple[str, ...]]
) -> None:
    file = Path(words[0]) if words else None
    found, again = file_and_stages(file, None, words[1:], fresh=fresh)
    assert (found and str(found), again) == expected


@pytest.mark.parametrize(
    ("words", "fresh", "message"),
    [
        (["a.yaml", "report"], False, "STAGE = 'report': is computed again with --fresh"),
        (["a.yaml", "b.yaml"], True, r"FILE = 'b.yaml': a.yaml is given, too"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(
    words: list[str], fresh: bool, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        file_and_stages(Path(words[0]), None, words[1:], fresh=fresh)


def test_a_stage_that_the_study_lacks_is_refused(command: Command) -> None:
    refused = command("study", str(SMALL), "--fresh", "raport", code=2).err
    assert "--fresh = 'raport': choose one of data, base, " in refused


def test_a_step_is_named_by_itself_or_by_its_stage() -> None:
    steps = study_steps(load_parameters(StudyParameters, SMALL))
    chosen = {
        name: [step.name for step in steps if step.is_among([name])]
        for name in ("forces", "sft-forces", "report")
    }
    assert chosen == {
        "forces": ["sft-forces", "preference-forces"],
        "sft-forces": ["sft-forces"],
        "report": ["report"],
    }
