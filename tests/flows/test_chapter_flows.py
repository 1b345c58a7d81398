"""The chapters on squeezing and simplicity as stages: what they make, plan and refuse."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.report.style import DARK
from dynolab.results.simplicity import LearnedMapping
from flows import simplicity, squeezing
from flows.parameters import load_parameters, validated
from flows.simplicity import SimplicityParameters, simplicity_steps
from flows.squeezing import SqueezingParameters, resolved_squeezing, squeezing_steps
from tasks.runtime.opening import planning_platform
from tasks.runtime.pipeline import Step, plan
from tasks.runtime.work import StageResult
from tests.flows.analysed import Analysed
from tests.flows.lab import ROOT

FEW = {"cases": 50, "classes": [5], "shown": [20], "shape_cases": 20}


def short(result: StageResult) -> str:
    return f"{result.stage}/{result.key[:12]}"


def run(lab: Analysed, steps: list[Step], given: dict[str, StageResult]) -> dict[str, StageResult]:
    results = dict(given)
    for step in steps:
        results[step.name] = lab.run(step.stage, step.config, step.name, **step.sources(results))
    assert {one.state for one in plan(steps, lab.platform, given)} == {"cached"}
    return results


def claims(folder: Path) -> dict[str, Verdict]:
    return {row.id: row for row in read_rows(folder / "claims.jsonl", Verdict)}


def check_colours(folder: Path) -> None:
    """A dark screen has a partner for every colour."""
    for file in (folder / "figures").glob("*.json"):
        assert set(re.findall(r"#[0-9a-f]{6}", file.read_text())) <= set(DARK), file.name


def test_squeezing_pushes_the_answers_of_a_finished_training(analysed: Analysed) -> None:
    parameters = validated(
        SqueezingParameters,
        {
            "name": "small",
            "softmax": FEW,
            "push": {"pairs": 3},
            "model": {"result": short(analysed.sft)},
            "data_result": short(analysed.data),
        },
    )
    known, given = resolved_squeezing(parameters, analysed.platform)
    steps = squeezing_steps(known, given)
    assert [step.name for step in steps] == ["softmax", "push", "squeezing-page"]
    results = run(analysed, steps, given)
    folder = analysed.folder(results["squeezing-page"])
    found = claims(folder)
    assert found["softmax/label_falls"].outcome == "holds"
    assert found["softmax/label_falls"].measured[0].violations == 0
    assert found["model/last_layer/rejected"].measured[0].n == 3
    page = (folder / "squeezing.html").read_text()
    assert "Who rises when an answer is pushed down" in page
    assert "name: small" in page
    assert results["squeezing-page"].metrics["left_over/rejected/first_order"] < 0.1
    assert {file.stem for file in (folder / "figures").glob("*.html")} == {
        "panels-20",
        "shapes",
        "step-paths",
        "explained",
        "ranks",
    }
    check_colours(folder)


def test_squeezing_needs_no_language_model(analysed: Analysed) -> None:
    parameters = validated(SqueezingParameters, {"softmax": FEW, "push": None})
    known, given = resolved_squeezing(parameters, analysed.platform)
    steps = squeezing_steps(known, given)
    assert [step.name for step in steps] == ["softmax", "squeezing-page"]
    folder = analysed.folder(run(analysed, steps, given)["squeezing-page"])
    assert not any(name.startswith("model/") for name in claims(folder))


def test_the_built_in_chapter_trains_its_own_model_with_one_seed() -> None:
    file = ROOT / "deploy" / "studies" / "squeezing_builtin.yaml"
    known = load_parameters(SqueezingParameters, file, ["seed=3"])
    planned = squeezing.FLOW.plan(known, planning_platform())
    steps, given = planned.steps, planned.existing
    assert given == {}
    assert [step.name for step in steps] == [
        "softmax",
        "data",
        "base",
        "model",
        "push",
        "squeezing-page",
    ]
    configs = {step.name: step.config.model_dump() for step in steps}
    assert {configs[name]["seed"] for name in ("softmax", "data", "base", "model")} == {3}
    assert configs["model"]["engine"]["kind"] == "plain"


def test_simplicity_learns_every_space_and_makes_a_page(analysed: Analysed) -> None:
    parameters = validated(
        SimplicityParameters,
        {
            "name": "small",
            "seeds": [0, 1],
            "width": 8,
            "spaces": [
                {"attributes": 2, "values": 2, "steps": 4},
                {"attributes": 3, "values": 2, "sampled": 2, "steps": 4},
            ],
        },
    )
    steps = simplicity_steps(parameters)
    assert [step.name for step in steps] == ["mappings-2x2", "mappings-3x2", "simplicity-page"]
    results = run(analysed, steps, {})
    rows = list(
        read_rows(analysed.folder(results["mappings-2x2"]) / "mappings.jsonl", LearnedMapping)
    )
    assert len(rows) == 256
    assert {len(row.area) for row in rows} == {2}
    folder = analysed.folder(results["simplicity-page"])
    page = (folder / "simplicity.html").read_text()
    assert "all 256 of 2×2 and 4 of 3×2 mappings, each from 2 different initial weights" in page
    assert {row.topic for row in claims(folder).values()} == {"2×2 objects", "3×2 objects"}
    check_colours(folder)


def test_the_built_in_simplicity_is_planned_as_it_stands() -> None:
    file = ROOT / "deploy" / "studies" / "simplicity_builtin.yaml"
    known = load_parameters(SimplicityParameters, file)
    steps = simplicity.FLOW.plan(known, planning_platform()).steps
    assert [step.name for step in steps][-1] == "simplicity-page"
    assert len(steps) == 4


SMALL = {"attributes": 2, "values": 2}
REFUSED_SPACES = [
    ({"spaces": [SMALL, SMALL]}, "spaces = ['2×2', '2×2']: name every space once"),
    ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
    ({"seeds": []}, "seeds"),
    ({"spaces": [{"attributes": 3, "values": 2}]}, "give a number of sampled bijections"),
    ({"spaces": [{**SMALL, "sampled": 9}]}, "choose 1 to 8"),
    ({"spaces": [{"attributes": 9, "values": 9, "sampled": 2}]}, "choose 81 at most"),
    ({"spaces": [{"attributes": 2, "values": 1}]}, "spaces.0.values = 1"),
    ({"spaces": [{**SMALL, "learning_rate": 0}]}, "spaces.0.learning_rate = 0"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED_SPACES)
def test_spaces_that_cannot_be_learned_are_refused(settings, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as refused:
        validated(SimplicityParameters, settings)
    assert message in str(refused.value)


REFUSED_PUSHES = [
    ({"softmax": {"classes": [2]}}, "softmax.classes.0 = 2"),
    ({"softmax": {"cases": 0}}, "softmax.cases = 0"),
    ({"push": {"fall": -1}}, "push.fall = -1"),
    ({"model": {}}, "model = 'nothing': give either result"),
    ({"model": {"model": "/nowhere"}}, "model.model = '/nowhere'"),
    ({"data": {"source": "file", "path": "pairs.jsonl"}}, "name a model for other rows"),
    ({"base": {"source": "some/model"}}, "name the model as model.model"),
    ({"model": {"result": "DATA"}}, "of stage data holds no model"),
    ({"model": {"result": "SFT"}, "data_result": "SFT"}, "of stage sft holds no train.jsonl"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED_PUSHES)
def test_what_cannot_be_pushed_is_refused(analysed: Analysed, settings, message: str) -> None:  # type: ignore[no-untyped-def]
    text = json.dumps(settings).replace("DATA", short(analysed.data))
    text = text.replace("SFT", short(analysed.sft))
    with pytest.raises(ConfigError) as refused:
        resolved_squeezing(validated(SqueezingParameters, json.loads(text)), analysed.platform)
    assert message in str(refused.value)
