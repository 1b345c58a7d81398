"""What cannot work is one message with field, value and remedy, and exit code 2; nothing runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from flows import cli
from tests.flows.lab import SMALL

Refused = Callable[..., str]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Refused]:
    """Runs the command to its refusal in this process; gives the message."""
    home = tmp_path / "home"
    monkeypatch.setenv("DYNOLAB_HOME", str(home))

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["dynolab", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said, complained = capsys.readouterr()
        assert end.value.code == 2, complained
        assert said == ""
        assert "Traceback" not in complained
        assert complained.startswith("error ")
        assert complained.count("\n") == 1, complained
        return complained

    with patch.dict(os.environ):  # the command sets variables
        yield run
    assert not list(tmp_path.glob("home/store/stages/*"))
    assert not list(tmp_path.glob("home/scratch/*"))


def study(*changes: str, config: Path = SMALL) -> list[str]:
    options = [word for change in changes for word in ("--set", change)]
    return ["study", "--config", str(config), *options]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "preference.objective.name=dpoo",
            "preference.objective.name = 'dpoo': choose one of 'sft', 'sft_extended', 'dpo', ",
        ),
        (
            "preference.objective.betta=1",
            "preference.objective.betta = 1: there is no such setting; look for a misspelling",
        ),
        ("preference.objective.beta=-1", "preference.objective.beta = -1: Input should be greater"),
        ("sft.stepz=3", "sft.stepz = 3: there is no such setting"),
        ("sft.steps=many", "sft.steps = 'many': Input should be a valid integer"),
        ("sft.record_steps=[6]", "sft.record_steps = [6]: must lie in 0..5"),
        (
            "preference.batch_size=5",
            "preference.batch_size = 5: must be a multiple of engine.ranks = 2",
        ),
        (
            "base.training.engine.ranks=2",
            "base.training.engine.ranks = 2: the plain engine runs in one process; set 1",
        ),
        ("data.world.entities=2", "data.world.entities = 2: the pairs and 12 spare facts need"),
        ("data.source=file", "data.path = None: set it for source: file"),
        (
            "data={source: file, path: pairs.jsonl}",
            "base.source = 'builtin': the built-in model has only the vocabulary of the built-in "
            "world",
        ),
        ("preference.seed=7", "preference.seed = 7: a study has one seed, 0; set `seed`"),
        ("nonsense", "--set = 'nonsense': write it as key=value"),
        ("=3", "--set = '=3': write it as key=value"),
        ("sft..steps=3", "--set = 'sft..steps=3': write it as key=value"),
        ("sft.steps=[", "--set = 'sft.steps=[': the value cannot be read as YAML"),
        ("seed.of.all=3", "--set = 'seed.of.all=3': seed holds a value, not settings"),
        ("name=2024-13-45", "the value cannot be read as YAML (month must be in 1..12"),
        ("data.path=${DYNOLAB_NOWHERE}", "set the environment variable DYNOLAB_NOWHERE"),
    ],
)
def test_settings(change: str, message: str, refused: Refused) -> None:
    assert message in refused(*study(change))


def test_a_batch_that_zero_3_cannot_share_out(refused: Refused) -> None:
    changes = ["preference.engine.zero_stage=3", "preference.engine.ranks=3"]
    expected = "preference.batch_size = 4: must be a multiple of engine.ranks = 3"
    assert expected in refused(*study(*changes))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"sft: {steps: 3\nname: [", "cannot be read as YAML (line 2"),
        (b"\xff\xfe\x00", "cannot be read as YAML"),
        (b"[" * 3000, "cannot be read as YAML"),
        (b"- sft\n", "must hold settings by name"),
        (b"seed: 0x_\n", "cannot be read as YAML"),
    ],
    ids=["syntax", "no text", "too deep", "a list", "no number"],
)
def test_study_files(content: bytes, message: str, tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "study.yaml"
    file.write_bytes(content)
    assert message in refused(*study(config=file))


def test_study_files_that_are_not_there(tmp_path: Path, refused: Refused) -> None:
    assert "no such file" in refused(*study(config=tmp_path / "study.yaml")).lower()
    assert "directory" in refused(*study(config=tmp_path)).lower()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://admin:hidden@127.0.0.1/sweeps",
        "postgresql://127.0.0.1/sweeps?user=admin&password=hidden",
        "https://127.0.0.1/sweeps?token=hidden",
    ],
)
def test_a_study_file_cannot_bring_a_login_into_parameters(
    address: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNOLAB_SWEEPS", address)
    message = refused(*study("project=${DYNOLAB_SWEEPS}"))
    assert "project = '${DYNOLAB_SWEEPS}': holds a login" in message and "hidden" not in message


@pytest.mark.parametrize("tag", ["python/object/apply:os.system", "python/object/new:os.system"])
def test_a_study_file_runs_nothing(tag: str, tmp_path: Path, refused: Refused) -> None:
    file, code = tmp_path / "study.yaml", f"!!{tag} ['touch {tmp_path}/ran']"
    file.write_text(f"name: {code}\n")
    for arguments in (study(config=file), study(f"name={code}")):
        assert "cannot be read as YAML" in refused(*arguments)
        assert not (tmp_path / "ran").exists()


def test_sources(tmp_path: Path, refused: Refused) -> None:
    data = f"data={{source: file, path: {tmp_path}/none.jsonl}}"
    missing = refused(*study(data, f"base.source={tmp_path}"))
    assert "none.jsonl': no such file; give JSON" in missing
    missing = refused(*study(f"base.source={tmp_path}/none"))
    assert f"base.source = '{tmp_path}/none': neither an existing folder" in missing


def test_stores(tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    for name, value, messages in (
        (
            "DYNOLAB_STORE",
            f"file://{tmp_path}/file/store",
            ("DYNOLAB_STORE = ", "use a folder that this user can write to"),
        ),
        ("DYNOLAB_STORE", "gopher://store", ("DYNOLAB_STORE = 'gopher://store'",)),
        (
            "MLFLOW_TRACKING_URI",
            "somewhere",
            ("MLFLOW_TRACKING_URI = 'somewhere': give an address",),
        ),
    ):
        with monkeypatch.context() as environment:
            environment.setenv(name, value)
            answer = refused(*study())
        assert [message for message in messages if message not in answer] == []
