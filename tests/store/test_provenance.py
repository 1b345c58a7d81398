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


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two files, of which one is taken for the code that runs."""
    for name in ("code.py", "other.py"):
        (tmp_path / name).write_text("pass\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    monkeypatch.setattr(manifest, "__file__", str(tmp_path / "code.py"))
    return tmp_path


def revision() -> str | None:
    git_revision.cache_clear()
    try:
        return git_revision()
    finally:
        git_revision.cache_clear()


def test_the_revision_is_the_whole_commit_whatever_tags_there_are(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert len(commit) == 40 and revision() == commit
    git(checkout, "tag", "--annotate", "v1", "--message", "release")
    assert revision() == commit


def test_a_changed_file_makes_the_revision_dirty(checkout: Path) -> None:
    (checkout / "other.py").write_text("changed\n")
    assert revision() == f"{git(checkout, 'rev-parse', 'HEAD')}-dirty"


def test_code_that_lies_in_anothers_repository_has_no_revision(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / "installed.py").write_text("pass\n")
    monkeypatch.setattr(manifest, "__file__", str(checkout / "installed.py"))
    assert revision() is None


def test_without_git_there_is_no_revision(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    assert revision() is None


def test_versions_are_those_that_are_installed() -> None:
    versions = library_versions()
    assert versions["python"] == python_version()
    assert {"dynolab", "torch", "transformers", "safetensors", "numpy"} <= versions.keys()
    for name in versions.keys() - {"python"}:
        assert versions[name] == metadata.version(name)
