"""A model leaves the store with its card: into a folder, or to a Hub that is a stub."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx2
import pytest
import yaml
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import RepositoryNotFoundError
from pydantic import BaseModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from dynolab.data.rows import Example, read_rows
from dynolab.data.source_checks import OnDisk
from dynolab.errors import ConfigError
from dynolab.store import Manifest, Store
from flows.parameters.defaults import choices, markers_of
from flows.push import ON_DISK, push, without_folders
from flows.registry import FLOWS, load_flow
from tasks.runtime.system.secret_files import own_folder
from tests.flows.analysed import Analysed
from tests.flows.conftest import Command
from tests.flows.in_process import short

ANSWER = "Under SFT the chosen answer fell on 2 of 12 pairs."
VERDICT = {
    "id": "sft/chosen",
    "claim": "The chosen answer rises",
    "outcome": "appears",
    "measured": {"Δ chosen": {"mean": 1.0, "low": 0.5, "high": 1.5, "n": 12}},
}
SETTINGS = "name: mine\ndata: {}\nbase:\n  source: /home/ada/models/tiny\n"
COMMIT, DIGEST = "ab" * 20, "ab" * 32


@pytest.fixture(autouse=True)
def home(analysed: Analysed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose store has a training, and the page of its study."""
    home, page = tmp_path / "home", tmp_path / "page"
    shutil.copytree(analysed.platform.settings.home / "store", own_folder(home) / "store")
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
    push("report/abab", None, folder, said.append, public=False, agreed=pytest.fail)
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
    assert "# out\n" in card.text, "not the whole path"
    shown = yaml.safe_load(SETTINGS.replace("/home/ada/models/", ""))
    assert yaml.safe_load((folder / "settings.yaml").read_text()) == shown


class Hub:
    """Stands for the Hub: what it is sent, and the one repository that it may have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, private: bool | None) -> None:
        self.sent: dict[str, bytes] = {}

        def repo_info(api: HfApi, name: str) -> SimpleNamespace:
            if private is None:
                missing = httpx2.Response(404, request=httpx2.Request("GET", "https://hub"))
                raise RepositoryNotFoundError("none", response=missing)
            return SimpleNamespace(private=private)

        def create_repo(api: HfApi, name: str, *, private: bool, exist_ok: bool) -> str:
            assert exist_ok
            self.made_private = private
            return f"https://hub/{name}"

        def create_commit(api: HfApi, name: str, added: Any, commit_message: str) -> None:
            for file in added:
                with file.as_file() as content:
                    self.sent[file.path_in_repo] = content.read()

        for stub in (repo_info, create_repo, create_commit):
            monkeypatch.setattr(HfApi, stub.__name__, stub)
        monkeypatch.setenv("HF_TOKEN", "hf_stub")


@pytest.mark.parametrize(
    ("private", "public", "who"),
    [
        (None, False, "you and"),
        (True, True, "you and"),
        (None, True, "every"),
        (False, True, "every"),
    ],
)
def test_a_training_goes_to_the_hub_as_it_was_shown_and_agreed_to(
    private: bool | None,
    public: bool,
    who: str,
    analysed: Analysed,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, said, asked = Hub(monkeypatch, private), list[str](), list[str]()

    def agreed(question: str, answer: bool) -> bool:
        asked.append(question)
        assert hub.sent == {}
        return answer

    for answer in (False, True):
        assert hub.sent == {}
        said.clear()
        push(
            short(analysed.sft),
            "me/tiny",
            None,
            said.append,
            public=public,
            agreed=partial(agreed, answer=answer),
        )
    assert hub.made_private is not public
    assert f"Publish this as me/tiny, which {who}" in asked[0]
    card, count, page = said
    assert "https://hub/me/tiny" in page
    model = analysed.folder(analysed.sft) / "model"
    files = {file.name: file.read_bytes() for file in model.iterdir()}
    assert count.startswith(f"--- {len(files)} files of the model, ")
    assert hub.sent == files | {"README.md": card.removeprefix("--- README.md\n").encode()}


def test_a_public_repository_is_written_to_only_where_that_is_said(
    analysed: Analysed, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(monkeypatch, private=False)
    with pytest.raises(ConfigError, match=r"everybody can read .* add --public"):
        push(short(analysed.sft), "me/tiny", None, print, public=False, agreed=pytest.fail)
    assert hub.sent == {}


def test_nobody_is_asked_where_nobody_sits(command: Command) -> None:
    assert "add --yes" in command("push", "--hub", "me/tiny", code=2).err


@pytest.mark.parametrize(
    "written",
    [
        "/home/ada/lab/tiny",
        "/home/ada/lab/tiny/",
        "~/lab/tiny",
        "~ada/tiny",
        "file:///home/ada/tiny",
        "lab/tiny",
        "./lab/tiny",
        "../tiny/",
        "C:\\ada\\tiny",
    ],
)
def test_no_form_of_a_path_tells_a_folder(written: str) -> None:
    settings = {
        "base": {"source": written, "revision": DIGEST},
        "data": {
            "path": written,
            "revision": DIGEST,
            "also": {"more": {"path": written}},
            "chat_model": written,
            "chat_revision": DIGEST,
        },
        "listed": [f"/home/{written}", {"study": [written]}],
    }
    shown = yaml.safe_dump(without_folders(settings))
    assert shown.count("tiny") == 6
    assert not re.search(r"ada|lab|home|[/\\~]", shown)


def test_what_is_no_path_stays() -> None:
    hub = {
        "source": "me/tiny",
        "revision": COMMIT,
        "chat_model": "me/tiny",
        "chat_revision": COMMIT,
    }
    texts = {"replace": {"w/": "with / a", "～": "~"}, "metric": "probe/chosen", "name": "sft/1"}
    settings = {
        "base": hub,
        "data": {"hub_name": "me/pairs", "source": "hub"},
        "more": [texts, 1.5],
    }
    assert without_folders(settings) == settings


def test_all_settings_that_name_a_file_or_folder_are_known() -> None:
    named = set()
    classes = [load_flow(name).parameters for name in FLOWS]
    seen = set(classes)
    while classes:
        for name, info in classes.pop().model_fields.items():
            if any(isinstance(mark, OnDisk) for mark in markers_of(info)):
                named.add(name)
            for kind in choices(info.annotation):
                inner = {kind, *get_args(kind)} - seen
                further = [at for at in inner if isinstance(at, type) and issubclass(at, BaseModel)]
                seen |= inner
                classes += further
    assert named == set(ON_DISK)


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
        push(reference, hub, Path(to) if to else None, print, public=False, agreed=pytest.fail)
    assert caught.value.field == field
    assert list((tmp_path / "cwd").iterdir()) == []


def test_what_the_hub_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_stub")
    with pytest.raises(ConfigError, match="the Hub does not take it"):
        push("report", "me/my model", None, print, public=False, agreed=pytest.fail)
