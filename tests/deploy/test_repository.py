"""The files that a public repository has: valid by their schemas, and of this version."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from dynolab import __version__
from tests.flows.lab import ROOT

CITATION, WORKFLOW = "CITATION.cff", ".github/workflows/ci.yml"
SCHEMAS = {CITATION: "vendor.citation-file-format", WORKFLOW: "vendor.github-workflows"}


def read(name: str) -> Any:
    return yaml.load((ROOT / name).read_text(), yaml.BaseLoader)  # every value is text


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_file_is_valid_by_its_specification(name: str) -> None:
    checked = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name]]
    subprocess.run([*checked, ROOT / name], check=True)


def test_citation_and_changelog_name_this_version_and_its_day() -> None:
    citation = read(CITATION)
    released = re.search(r"^## \[(\d\S*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released is not None
    assert (citation["version"], citation["date-released"]) == released.groups()
    assert citation["version"] == __version__


def test_continuous_integration_reads_the_code_and_runs_what_people_run() -> None:
    workflow = read(WORKFLOW)
    assert workflow["permissions"] == {"contents": "read"}
    jobs = workflow["jobs"]
    assert jobs["check"]["steps"][-1]["run"] == ".ci/run"
    assert jobs["core"]["steps"][-1]["run"] == "rm -r experiments && make check"
    actions = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"\S+@[0-9a-f]{40}", action) for action in actions), "by commit"
