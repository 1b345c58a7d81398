"""A model leaves the store with its card: into a folder, or to a Hub that is a stub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer

from dynolab.data.rows import Example, read_rows
from dynolab.errors import ConfigError
from dynolab.store import Manifest, Store
from flows.push import push
from tests.flows.analysed import Analysed
from tests.flows.in_process import short

ANSWER = "Under SFT the chosen answer fell on 2 of 12 pairs."
VERDICT = {
    "id": "sft/chosen",
    "claim": "The chosen answer rises",
    "outcome": "appears",
    "measured": {"Δ chosen": {"mean": 1.0, "low": 0.5, "high": 1.5, "n": 12}},
}
SETTINGS = "name: mine\ndata: {}\nbase:\n  source: /home/ada/models/tiny\n"


@pytest.fixture(autouse=True)
def home(analysed: Analysed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose store has a training, and the page of its study."""
    home, page = tmp_path / "home", tmp_path / "page"
    shutil.copytree(analysed.platform.settings.home / "store", home / "store")
    page.mkdir()
    prompt = next(iter(read_rows(analysed.folder(analysed.data) / "train.jsonl", Example))).prompt
    (page / "answer.txt").write_text(f"{ANSWER}\n\npair  prompt\n0  {prompt}\n")
    (page / "summary.json").write_text(json.dumps({"verdicts": [VERDICT]}))
    read = {"data": analysed.data, "base": analysed.base, "sft": analysed.sft}
    parents = {name: result.digest for name, result in read.items()}
    config: Any = {"settings": SETTINGS}
    manifest = Manifest(stage="report", key="ab" * 32, version=1, parents=parents, config=config)
    Store(f"file://{home}/store", cache=home / "cache").place("report", manifest.key).commit(
        page, manifest
    )
    monkeypatch.setenv("DYNOLAB_HOME", str(home))
    return home


def test_a_study_leaves_its_last_model_with_its_figures(analysed: Analysed, tmp_path: Path) -> None:
    folder, said = tmp_path / "out", list[str]()
    push("report/abab", None, folder, said.append, public=False)
    assert str(folder) in said[0]
    trained = analysed.folder(analysed.sft) / "model" / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == trained.read_bytes()
    AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    card = ModelCard.load(folder / "README.md")
    assert card.data.tags == ["dynolab", "sft"]
    assert ANSWER in card.text
    assert "+1.0 [+0.5, +1.5] (12)" in card.text
    assert short(analysed.sft) in card.text
    prompts = {
        row.prompt for row in read_rows(analysed.folder(analysed.data) / "train.jsonl", Example)
    }
    assert not any(prompt in card.text for prompt in prompts)
    assert (folder / "settings.yaml").read_text() == SETTINGS.replace("/home/ada/models/", "")


def test_a_training_goes_to_a_private_repository(
    analysed: Analysed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, bytes] = {}

    def create_repo(api: HfApi, name: str, *, private: bool, exist_ok: bool) -> str:
        assert private
        assert exist_ok
        return f"https://hub/{name}"

    def upload_folder(api: HfApi, repo_id: str, folder_path: Path) -> None:
        sent.update({file.name: file.read_bytes() for file in folder_path.iterdir()})

    def upload_file(api: HfApi, repo_id: str, path_or_fileobj: bytes, path_in_repo: str) -> None:
        sent[path_in_repo] = path_or_fileobj

    for stub in (create_repo, upload_folder, upload_file):
        monkeypatch.setattr(HfApi, stub.__name__, stub)
    monkeypatch.setenv("HF_TOKEN", "hf_stub")
    said: list[str] = []
    push(short(analysed.sft), "me/tiny", None, said.append, public=False)
    assert "https://hub/me/tiny" in said[0]
    model = analysed.folder(analysed.sft) / "model"
    files = {file.name: file.read_bytes() for file in model.iterdir()}
    assert sent.items() >= files.items()
    assert set(sent) - set(files) == {"README.md"}


@pytest.mark.parametrize(
    ("reference", "hub", "to", "field"),
    [
        ("report", None, None, "--hub"),
        ("report", None, ".", "--to"),
        ("report", "me/tiny", None, "--hub"),  # no login
        ("report/1234", None, "new", "RESULT"),
        ("data", None, "new", "RESULT"),
        ("base", None, "new", "RESULT"),
    ],
)
def test_what_cannot_be_pushed_is_named_and_nothing_is_written(
    reference: str,
    hub: str | None,
    to: str | None,
    field: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr("flows.push.get_token", lambda: None)
    with pytest.raises(ConfigError) as caught:
        push(reference, hub, Path(to) if to else None, print, public=False)
    assert caught.value.field == field
    assert list((tmp_path / "cwd").iterdir()) == []


def test_what_the_hub_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_stub")
    with pytest.raises(ConfigError, match="the Hub does not take it"):
        push("report", "me/my model", None, print, public=False)
