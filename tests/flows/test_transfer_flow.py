"""The flow of task heads: its stages, its page, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.results.transfer import TransferRow
from flows.parameters import load_parameters, validated
from flows.transfer import TransferParameters, resolved_transfer, transfer_steps
from tasks.runtime.pipeline import plan
from tests.flows.chapters import Chapters
from tests.flows.lab import ROOT

QUICK = {
    "examples": 60,
    "taus": [0, 1, 4],
    "pretraining": {"epochs": 2},
    "finetuning": {"epochs": 2},
}
SMALL = {
    "name": "small",
    "seeds": [0, 1],
    "data": {"train": 200, "validation": 10, "test": 60},
    "digits": QUICK,
    "topics": QUICK,
    "texts": {"texts": 360},
}


def steps_of(**changes: Any):  # type: ignore[no-untyped-def]
    parameters = validated(TransferParameters, SMALL | changes)
    return transfer_steps(resolved_transfer(parameters))


def test_the_stages_make_a_page_with_its_claims(tmp_path: Path) -> None:
    lab, steps = Chapters(tmp_path), steps_of()
    assert [step.name for step in steps] == [
        "images",
        "transfer-digits",
        "transfer-topics",
        "transfer-page",
    ]
    results = lab.run(steps)
    for name in ("transfer-digits", "transfer-topics"):
        rows = list(read_rows(lab.folder(results[name]) / "transfer.jsonl", TransferRow))
        assert len(rows) == 4 * 3 * 2
    page = lab.folder(results["transfer-page"])
    text = (page / "transfer.html").read_text()
    assert "How to prepare a task head" in text
    claims = {row.id for row in read_rows(page / "claims.jsonl", Verdict)}
    assert {"digits/energy", "topics/best/out", "digits/mismatch"} <= claims
    assert "topics/linear/tau_4/accuracy" in results["transfer-page"].metrics
    assert {one.state for one in plan(steps, lab.platform)} == {"cached"}


def test_texts_can_be_left_out() -> None:
    assert [step.name for step in steps_of(texts=None)] == [
        "images",
        "transfer-digits",
        "transfer-page",
    ]


REFUSED = [
    ({"first_digits": [0, 12]}, "first_digits = [0, 12]: name classes of 0 … 9"),
    ({"first_digits": [0]}, "both tasks need two at least"),
    ({"digits": QUICK | {"taus": [4, 1]}}, "digits.taus = [4, 1]"),
    ({"texts": {"source": "file", "path": "/nowhere"}}, "texts.path = '/nowhere'"),
    ({"texts": {"source": "file"}}, "texts.path = None"),
    ({"seeds": [0, 0]}, "seeds = [0, 0]: name every seed once"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_trains(changes, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as refused:
        steps_of(**changes)
    assert message in str(refused.value)


def test_topics_that_are_not_there_are_refused_by_the_stage(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"first_topics = \[0, 40\]: name classes of 0 … 11"):
        Chapters(tmp_path).run(steps_of(first_topics=[0, 40]))


def test_the_study_file_holds_what_it_says() -> None:
    file = ROOT / "deploy" / "studies" / "transfer_builtin.yaml"
    assert load_parameters(TransferParameters, file).first_digits == (0, 1, 2, 3, 4)
