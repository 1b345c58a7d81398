"""The flow of supervision under label noise: its stages, its page, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.results.supervision import DetectionRow, SupervisionRow
from flows.parameters import load_parameters, validated
from flows.supervision import SupervisionParameters, resolved_supervision, supervision_steps
from tasks.runtime.pipeline import plan
from tests.flows.chapters import Chapters
from tests.flows.lab import ROOT

SMALL = {
    "name": "small",
    "seeds": [0, 1],
    "noise": [0.0, 0.4],
    "data": {"train": 60, "validation": 20, "test": 40},
    "supervision": {"training": {"epochs": 3}},
    "speed": {"examples": 40, "steps": 5, "points": 3},
}


def steps_of(**changes: Any):  # type: ignore[no-untyped-def]
    parameters = validated(SupervisionParameters, SMALL | changes)
    return supervision_steps(resolved_supervision(parameters))


def test_the_stages_make_a_page_with_its_claims(tmp_path: Path) -> None:
    lab, steps = Chapters(tmp_path), steps_of()
    assert [step.name for step in steps] == [
        "images",
        "noise-0",
        "noise-40",
        "learning-speed",
        "supervision-page",
    ]
    results = lab.run(steps)
    folder = lab.folder(results["noise-40"])
    rows = list(read_rows(folder / "supervision.jsonl", SupervisionRow))
    assert len(rows) == 7 * 2
    assert len(list(read_rows(folder / "detections.jsonl", DetectionRow))) >= 3 * 2
    page = lab.folder(results["supervision-page"])
    text = (page / "supervision.html").read_text()
    assert "What to teach when labels are wrong" in text
    assert "Who teaches whom" in text
    claims = list(read_rows(page / "claims.jsonl", Verdict))
    assert {"supervision/0.4/filter_kd_over_one_hot", "speed/clean-noisy"} <= {c.id for c in claims}
    assert "noise_40/accuracy/filter_kd" in results["supervision-page"].metrics
    assert {one.state for one in plan(steps, lab.platform)} == {"cached"}


def test_a_level_more_leaves_the_others_as_they_were() -> None:
    before = {step.name: step.config for step in steps_of()}
    after = {step.name: step.config for step in steps_of(noise=[0.0, 0.2, 0.4])}
    assert set(after) - set(before) == {"noise-20"}
    assert after["noise-40"] == before["noise-40"]


REFUSED = [
    ({"noise": [1.0]}, "noise.0 = 1.0"),
    ({"noise": [-0.1]}, "noise.0 = -0.1"),
    ({"noise": [float("nan")]}, "noise.0 = nan"),
    ({"noise": [0.4, 0.4]}, "noise = [0.4, 0.4]: name every level once"),
    ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
    ({"seeds": []}, "seeds = []"),
    ({"data": {"source": "idx", "path": "/nowhere"}}, "data.path = '/nowhere'"),
    ({"speed": {"noise": 1.5}}, "speed.noise = 1.5"),
    ({"supervision": {"smoothing": 1.0}}, "supervision.smoothing = 1.0"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_trains(changes, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as refused:
        steps_of(**changes)
    assert message in str(refused.value)


def test_labels_out_of_range_end_the_flow_at_its_first_stage(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="labels must lie in 0 … 3"):
        Chapters(tmp_path).run(steps_of(data=SMALL["data"] | {"classes": 4}))  # type: ignore[operator]


def test_the_study_file_holds_what_it_says() -> None:
    file = ROOT / "deploy" / "studies" / "supervision_builtin.yaml"
    known = load_parameters(SupervisionParameters, file)
    assert known.noise == (0.0, 0.2, 0.4, 0.6, 0.8)
