"""`dynolab init` writes a study that can be run; `dynolab doctor` names what is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from flows import doctor
from flows.audit import AuditParameters, named_on_command_line
from flows.doctor import examine
from flows.init import write_study
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from tests.training.small import make_policy, make_rows, make_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model and 24 pairs."""
    tokenizer = make_tokenizer()
    for content in (make_policy(tokenizer), tokenizer):
        content.save_pretrained(tmp_path / "my model")
    rows = [row.model_dump(include={"prompt", "chosen", "rejected"}) for row in make_rows(24)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_file_names_its_sources_from_its_folder_and_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "7.yaml"
    written = write_study(
        file, model=str(folder / "my model"), data=folder / "pairs.jsonl", program="dynolab"
    )
    assert written.notes[0].startswith("24 rows → ") and "It takes about" in written.notes[-1]
    facts = json.loads(json.dumps(written.as_json()))
    assert facts["sizes"]["pairs"] == 24 and facts["seconds"] > 0
    text = file.read_text()
    assert str(folder) not in text.replace(str(file), "")
    assert max(map(len, text.replace(str(file), "").splitlines())) <= 100
    monkeypatch.chdir("/")
    study = resolved(load_parameters(StudyParameters, file))
    assert study.name == "7" and study.data.path == str(folder / "pairs.jsonl")
    assert study.sft is not None and study.sft.steps == 20
    assert study.preference.objective.name == "dpo"


def test_messages_for_a_model_without_a_template_become_turns(folder: Path) -> None:
    """As HH writes them, and the file and the terminal say so."""

    def said(role: str, content: str) -> list[dict[str, str]]:
        return [{"role": role, "content": content}]

    rows = [
        {
            "prompt": said("user", row.prompt),
            "chosen": said("assistant", row.chosen),
            "rejected": said("assistant", row.rejected or ""),
        }
        for row in make_rows(24)
    ]
    data, model = folder / "chat.jsonl", str(folder / "my model")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = write_study(folder / "chat.yaml", model=model, data=data, program="dynolab")
    assert "no chat template" in " ".join(written.notes)
    assert "chat: plain" in (folder / "chat.yaml").read_text()
    study = resolved(load_parameters(StudyParameters, folder / "chat.yaml"))
    changes = named_on_command_line(model, data, None)
    audit = load_parameters(AuditParameters, None, changes)
    assert study.data.chat == audit.data.chat == "plain" and audit.name == "chat-audit"


def test_a_file_is_not_overwritten_and_a_model_has_to_be_there(folder: Path) -> None:
    data, file = folder / "pairs.jsonl", folder / "mine.yaml"
    with pytest.raises(ConfigError, match="data"):
        write_study(file, model=str(folder / "my model"), data=folder / "none", program="dynolab")
    file.touch()
    with pytest.raises(ConfigError, match="exists; name another, or delete it"):
        write_study(file, model=str(folder / "my model"), data=data, program="dynolab")


def test_the_doctor_names_home_and_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DYNOLAB_STORE", raising=False)
    found = {finding.name: finding for finding in examine()}
    assert found["home"].text.startswith(str(tmp_path / "home"))
    assert found["store"].text.endswith(", 0 results")
    assert {"dynolab", "python", "torch", "servers"} <= found.keys()


def test_the_doctor_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").touch()
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "home"))

    def wrong() -> list[tuple[str, str]]:
        return [(finding.name, finding.text) for finding in examine() if finding.state == "wrong"]

    ((name, text),) = wrong()
    assert name == "home" and "name a folder" in text
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "another"))
    for store in ("gs://bucket", "s3://bucket?key=1", "file:///dev/null/store"):
        monkeypatch.setenv("DYNOLAB_STORE", store)
        monkeypatch.setattr(doctor, "TORCH", "raise ImportError('libtorch.so')")
        (name, _), torch = wrong()
        assert name == "store"
        assert torch == ("torch", "cannot be imported: ImportError: libtorch.so; install it again")
    monkeypatch.delenv("DYNOLAB_STORE")
    if os.geteuid():
        tmp_path.chmod(0o500)
        monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "other"))
        assert any("cannot be written" in finding.text for finding in examine())
