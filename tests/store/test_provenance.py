"""A manifest tells the versions and the commit that its result was made with."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path
from platform import python_version

import pytest

from dynolab.store import git_revision, library_versions, manifest


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@localhost"]
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_revision_is_the_whole_commit_of_the_code_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def revision(file: str = "code.py") -> str | None:
        monkeypatch.setattr(manifest, "__file__", str(tmp_path / file))
        return git_revision.__wrapped__()

    for name in ("code.py", "other.py"):
        (tmp_path / name).write_text("pass\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert len(commit) == 40 and revision() == commit
    git(tmp_path, "tag", "--annotate", "v1", "--message", "release")
    assert revision() == commit
    (tmp_path / "other.py").write_text("changed\n")
    assert revision() == f"{commit}-dirty"
    (tmp_path / "installed.py").write_text("pass\n")
    assert revision("installed.py") is None, "it lies in another's repository"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision() is None, "without git"


def test_versions_are_those_that_are_installed() -> None:
    versions = library_versions()
    assert versions["python"] == python_version()
    assert {"dynolab", "torch", "transformers", "safetensors", "numpy"} <= versions.keys()
    for name in versions.keys() - {"python"}:
        assert versions[name] == metadata.version(name)
