"""Rows and models that cannot work end a study before any rank starts, with one message."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.flows.lab import SMALL, Lab, complaints, ended_well

pytestmark = pytest.mark.services

SHORT_NAMES = [f"short{number}" for number in range(12)]
LONG_NAMES = [f"long{number}" for number in range(12)]
LONG = "why " * 2000


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny language model that was saved for others to use."""
    from dynolab.data.world.world import WorldConfig, build_world
    from models.language import save_language_model
    from models.tiny import TinyConfig, build_tiny

    folder = tmp_path_factory.mktemp("model")
    sizes = WorldConfig(entities=20, train_pairs=12, heldout_pairs=6, corpus_rows=64)
    tokenizer = build_world(sizes).tokenizer()
    save_language_model(build_tiny(TinyConfig(), tokenizer), tokenizer, folder)
    return folder


@pytest.fixture
def lab(tmp_path: Path, servers: dict[str, str]) -> Lab:
    return Lab(tmp_path / "lab", **servers)


def pairs(names: Sequence[str], *, words: str = "") -> list[dict[str, str]]:
    """A row for each name; `words` stand in every prompt."""
    return [
        {"prompt": f"what is {name} {words}?", "chosen": f"{name} .", "rejected": f"not {name} ."}
        for name in names
    ]


def study_file(folder: Path, rows: list[dict[str, str]], model: Path) -> Path:
    """The small study on these rows, from this model, in one process."""
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    study = yaml.safe_load(SMALL.read_text())
    study["data"] = {"source": "file", "path": str(folder / "pairs.jsonl"), "heldout_rows": 2}
    study["base"] = {"source": str(model)}
    for stage in ("sft", "preference"):
        study[stage]["engine"] = {"kind": "plain", "ranks": 1}
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    return file


def refusal(lab: Lab, *changes: str, config: Path) -> str:
    errors = complaints(lab.start(*changes, config=config))
    assert errors.count("error ") == 1
    assert not list(lab.home.glob("store/stages/*/*/logs/*/rank-*.log"))
    assert lab.left_behind() == []
    return errors[errors.index("error ") :]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"prompt": "what ?", "text": "it ."}],
            "needs columns prompt and chosen (and rejected), or messages",
        ),
        ([], "data = 'pairs.jsonl': has no rows; give a source with two"),
    ],
    ids=["missing-column", "empty"],
)
def test_rows(
    rows: list[dict[str, str]], message: str, lab: Lab, tmp_path: Path, model_folder: Path
) -> None:
    assert message in refusal(lab, config=study_file(tmp_path, rows, model_folder))


def test_a_row_longer_than_the_context(lab: Lab, tmp_path: Path, model_folder: Path) -> None:
    file = study_file(tmp_path, pairs(LONG_NAMES, words=LONG), model_folder)
    ranks = ["sft.engine={kind: deepspeed, ranks: 2}"]
    message = refusal(lab, *ranks, config=file)
    assert "overlong = 'error': row row-0000" in message
    assert "set overlong to drop, truncate_left" in message


def test_a_model_folder_without_weights(lab: Lab, tmp_path: Path, model_folder: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model_folder, bare)
    (bare / "model.safetensors").unlink()
    message = refusal(lab, config=study_file(tmp_path, pairs(SHORT_NAMES), bare))
    assert f"base.source = '{bare}': the folder holds no *.safetensors weights" in message


@pytest.mark.faults
def test_a_study_on_a_file_says_which_rows_it_left_out(
    lab: Lab, tmp_path: Path, model_folder: Path
) -> None:
    rows = [*pairs(SHORT_NAMES), *pairs(LONG_NAMES[:4], words=LONG)]
    file = study_file(tmp_path, rows, model_folder)
    printed = ended_well(lab.start("sft.overlong=drop", "preference.overlong=drop", config=file))
    dropped = lab.manifest("sft")["metrics"]["data/rows_dropped"]
    assert dropped > 0
    both = f"sft, preference: longer than the model's context: {dropped:.0f} rows dropped"
    assert both in printed
    assert lab.left_behind() == []
