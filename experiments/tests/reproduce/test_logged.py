"""`dynolab reproduce --logs`: a page and a table of runs that others logged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from dynolab.errors import ConfigError
from experiments.reproduce.command import reproduce
from experiments.reproduce.logged import start_logs
from experiments.reproduce.logs import LINES
from experiments.tests.reproduce.made_up import made_up, write_log
from tests.flows.bad_inputs import PIPE, BadInput, judged, make_folder
from tests.flows.conftest import Command
from tests.flows.lab import ROOT
from tests.report.parsed import CANARY, words_of

RUNS = {
    "ours": {"folder": "first", "training": "from-base"},
    "their means": {"folder": "second", "training": "sft_extended", "without": ["argmax"]},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write_file(folder: Path, runs: object = RUNS) -> Path:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", "runs": runs}))
    return file


def test_the_command_writes_a_page_and_a_table(
    home: Path, tmp_path: Path, command: Command
) -> None:
    write_log(tmp_path / "logs/first", made_up())
    write_log(tmp_path / "logs/second", made_up(seed=1), means_alone=True)
    said = command("reproduce", str(write_file(tmp_path)), "--logs", str(tmp_path / "logs")).out
    assert "mine.html" in said
    table = json.loads((home / "reports/mine.json").read_text())
    assert table["verdicts"]["ours/from-base/rejected"] == "holds"
    assert table["verdicts"]["their means/sft_extended/chosen"] == "unclear"
    assert table["estimates"]["changes/ours/chosen"]["n"] == 40
    assert 0 < table["estimates"]["fell/ours"]["mean"] <= 1
    assert (
        len(table["paths"]["ours"]["argmax"]) == 9 and "argmax" not in table["paths"]["their means"]
    )
    words = words_of(home / "reports/mine.html", " ")
    assert "their mean" in words and "nan" not in words.split()


def test_names_in_a_log_are_shown_and_never_obeyed(home: Path, tmp_path: Path) -> None:
    log = write_log(tmp_path / "logs/first", made_up(), means_alone=True) / LINES
    log.write_text(
        log.read_text().replace("rejected", CANARY).replace("chosen_A_o", f"{CANARY}A_o")
    )
    start_logs(tmp_path / "logs", write_file(tmp_path, {"ours": RUNS["ours"]}), [], print)
    assert CANARY not in (home / "reports/mine.html").read_text()


def test_options_of_trainings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trains nothing"):
        reproduce(logs=tmp_path, plan=True)


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"ours": {"folder": "../first", "training": "sft"}}, "folder"),
        ({"ours": {"folder": "absent", "training": "sft"}}, "no folder absent"),
        ({"ours": {"folder": "first", "training": "other"}}, "training"),
        ({"<script>": {"folder": "first", "training": "sft"}}, "script"),
        ({}, "runs"),
    ],
)
def test_runs_that_cannot_be_read_are_refused(
    home: Path, tmp_path: Path, runs: object, message: str
) -> None:
    write_log(tmp_path / "logs/first", made_up())
    with pytest.raises(ConfigError, match=message):
        start_logs(tmp_path / "logs", write_file(tmp_path, runs), [], print)
    assert not home.exists()


@pytest.mark.skipif("DYNOLAB_TEST_DATA" not in os.environ, reason="needs DYNOLAB_TEST_DATA")
def test_the_authors_own_runs_give_the_kept_table(home: Path) -> None:
    start_logs(Path(os.environ["DYNOLAB_TEST_DATA"]) / "data/authors_logs", None, [], print)
    table, kept = (
        json.loads(file.read_text())
        for file in (
            home / "reports/authors-logs.json",
            ROOT / "deploy/studies/results/authors-logs.json",
        )
    )
    assert [table[part] for part in ("verdicts", "paths")] == [kept["verdicts"], kept["paths"]]
    keys = [{name: one["key"] for name, one in each["stages"].items()} for each in (table, kept)]
    assert keys[0] == keys[1]


PIPED = {
    "runs.yaml": "runs: {a: {folder: a, training: sft}}\n",
    "logs/a/prob_train_metrics.json": PIPE,
}


@pytest.mark.parametrize(
    "bad",
    [
        BadInput("no folder", "--logs = 'none'", ["reproduce", "--logs", "none"]),
        BadInput("pipe", "--logs = 'pipe'", ["reproduce", "--logs", "pipe"], {"pipe": PIPE}),
        BadInput("file", "--logs = ", ["reproduce", "--logs", "logs", "runs.yaml"], PIPED),
    ],
    ids=lambda bad: bad.name,
)
def test_one_clear_line(
    bad: BadInput, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    make_folder(tmp_path / "here", bad, inputs)
    monkeypatch.chdir(tmp_path / "here")
    printed = command(*bad.arguments, code=2)
    assert judged(bad, 2, printed.out, printed.err) == "clear", printed.err
