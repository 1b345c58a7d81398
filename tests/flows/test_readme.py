"""The README's Python runs as it stands there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.flows.analysed import Analysed
from tests.flows.lab import ROOT

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_a_block_runs(
    code: str, analysed: Analysed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    record = analysed.folder(analysed.sft, "forces/step-00000003")
    shutil.copytree(record, tmp_path / "forces" / "step-00000050")
    shutil.copytree(analysed.folder(analysed.sft, "model"), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out
