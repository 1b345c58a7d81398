"""The chapters on squeezing and simplicity as stages: what they make, plan and refuse."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dynolab.chapters.page import read_frame
from dynolab.claims.verdict import Verdict
from dynolab.errors import ConfigError
from dynolab.report.style import DARK
from flows.chapter import COUPLING, SIMPLICITY, SQUEEZING
from flows.chapter.digits import SimplicityParameters
from flows.chapter.language import CouplingParameters, SqueezingParameters
from flows.flow import StagedFlow
from flows.parameters import load_parameters
from tasks.runtime.open_platform import planning_platform
from tasks.runtime.work import StageResult
from tasks.training import SFT
from tests.flows.analysed import WORLD, Analysed
from tests.flows.in_process import step_names
from tests.flows.lab import ROOT

FEW = {"cases": 50, "classes": [5], "shown": [20], "shape_cases": 20}
SMALL = {"attributes": 2, "values": 2}


def claims(lab: Analysed, page: StageResult) -> dict[str, Verdict]:
    return {claim.id: claim for claim in lab.rows(page, "claims.jsonl", Verdict)}


def check_colours(lab: Analysed, page: StageResult) -> set[str]:
    """A dark screen has a partner for every colour; the names of the figures."""
    figures = lab.folder(page, "figures")
    for file in figures.glob("*.json"):
        assert set(re.findall(r"#[0-9a-f]{6}", file.read_text())) <= set(DARK), file.name
    return {file.stem for file in figures.glob("*.html")}


def test_squeezing_pushes_the_answers_of_a_finished_training(analysed: Analysed) -> None:
    settings = {
        "name": "small",
        "softmax": FEW,
        "push": {"pairs": 3},
        "model": {"result": "SFT"},
        "data_result": "DATA",
    }
    plan = analysed.plan(SQUEEZING, analysed.named(settings))
    assert step_names(plan) == ["softmax", "push", "squeezing-page"]
    page = analysed.run_plan(plan)["squeezing-page"]
    assert analysed.to_run(plan) == set()
    found = claims(analysed, page)
    assert found["softmax/label_falls"].outcome == "holds"
    assert found["softmax/label_falls"].measured[0].violations == 0
    assert found["model/last_layer/rejected"].measured[0].n == 3
    assert "name: small" in analysed.text(page, "squeezing.html")
    assert page.metrics["left_over/rejected/first_order"] < 0.1
    figures = {"panels-20", "shapes", "step-paths", "explained", "ranks"}
    assert check_colours(analysed, page) == figures


def test_squeezing_needs_no_language_model(analysed: Analysed) -> None:
    plan = analysed.plan(SQUEEZING, {"softmax": FEW, "push": None})
    assert step_names(plan) == ["softmax", "squeezing-page"]
    page = analysed.run_plan(plan)["squeezing-page"]
    assert not any(name.startswith("model/") for name in claims(analysed, page))


def test_the_built_in_chapter_trains_its_own_model_with_one_seed() -> None:
    file = ROOT / "deploy" / "studies" / "squeezing_builtin.yaml"
    known = load_parameters(SqueezingParameters, file, ["seed=3"])
    planned = SQUEEZING.plan(known, planning_platform())
    assert planned.existing == {}
    assert step_names(planned) == ["softmax", "data", "base", "model", "push", "squeezing-page"]
    configs = {step.name: step.config.model_dump() for step in planned.steps}
    assert {configs[name]["seed"] for name in ("softmax", "data", "base", "model")} == {3}
    assert configs["model"]["engine"]["kind"] == "plain"


def test_coupling_reads_the_kernel_along_both_trainings(analysed: Analysed) -> None:
    training = {"engine": {"kind": "plain", "ranks": 1}, "steps": 4, "batch_size": 4}
    dpo = {"objective": {"name": "dpo"}, "optimizer": {"name": "sgd"}, **training}
    settings = {
        "data": {"world": WORLD.model_dump()},
        "base": {"training": training},
        "sft": {**training, "optimizer": {"learning_rate": 1e-4}},
        "preference": dpo,
        "rates": [1, 4],
        "readings": 2,
        "kernel": {"observed_pairs": 2, "updating_pairs": 3, "rank": 2, "probes": 2},
    }
    plan = analysed.plan(COUPLING, settings)
    arms = [step for n in (0, 1) for step in (f"sft-{n}", f"dpo-{n}", f"kernel-{n}")]
    assert step_names(plan) == ["data", "base", *arms, "coupling-page"]
    page = analysed.run_plan(plan)["coupling-page"]
    assert analysed.to_run(plan) == set()
    found = claims(analysed, page)
    assert {claim.topic for claim in found.values()} == {
        "learning rate 0.0001",
        "learning rate 0.0004",
    }
    (during, after) = list(found.values())[:2]
    assert [measured.name for measured in during.measured] == ["start to step-2", "step-2 to sft"]
    assert [measured.name for measured in after.measured] == ["sft to preference"]
    assert check_colours(analysed, page) == {"coupling"}


def test_the_built_in_coupling_is_planned_as_it_stands() -> None:
    file = ROOT / "deploy" / "studies" / "coupling_builtin.yaml"
    known = load_parameters(CouplingParameters, file)
    planned = COUPLING.plan(known, planning_platform())
    rates = [step.config.optimizer.learning_rate for step in planned.steps if step.stage is SFT]
    assert rates == pytest.approx([5e-5, 2e-4, 8e-4])


def test_simplicity_learns_every_space_and_makes_a_page(analysed: Analysed) -> None:
    settings = {
        "name": "small",
        "seeds": [0, 1],
        "width": 8,
        "spaces": [
            {"attributes": 2, "values": 2, "steps": 4},
            {"attributes": 3, "values": 2, "sampled": 2, "steps": 4},
        ],
    }
    plan = analysed.plan(SIMPLICITY, settings)
    assert step_names(plan) == ["mappings-2x2", "mappings-3x2", "simplicity-page"]
    results = analysed.run_plan(plan)
    assert analysed.to_run(plan) == set()
    rows = read_frame([analysed.folder(results["mappings-2x2"])], "mappings.jsonl")
    assert len(rows) == 256 and set(rows.area.map(len)) == {2}
    page = results["simplicity-page"]
    topics = {claim.topic for claim in claims(analysed, page).values()}
    assert topics == {"2×2 objects", "3×2 objects"}
    assert check_colours(analysed, page) == {"losses", "cooperation", "similarity", "influence"}


def test_the_built_in_simplicity_is_planned_as_it_stands() -> None:
    file = ROOT / "deploy" / "studies" / "simplicity_builtin.yaml"
    known = load_parameters(SimplicityParameters, file)
    names = step_names(SIMPLICITY.plan(known, planning_platform()))
    assert names[-1] == "simplicity-page" and len(names) == 4


REFUSED_SPACES: list[tuple[dict[str, Any], str]] = [
    ({"spaces": [SMALL, SMALL]}, "spaces = ['2×2', '2×2']: name every space once"),
    ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
    ({"seeds": []}, "seeds"),
    ({"spaces": [{"attributes": 3, "values": 2}]}, "give a number of sampled bijections"),
    ({"spaces": [{**SMALL, "sampled": 9}]}, "choose 1 to 8"),
    ({"spaces": [{"attributes": 9, "values": 9, "sampled": 2}]}, "choose at most 81"),
    ({"spaces": [{"attributes": 2, "values": 1}]}, "spaces.0.values = 1"),
    ({"spaces": [{**SMALL, "learning_rate": 0}]}, "spaces.0.learning_rate = 0"),
]
REFUSED_PUSHES: list[tuple[dict[str, Any], str]] = [
    ({"softmax": {"classes": [2]}}, "softmax.classes.0 = 2"),
    ({"softmax": {"cases": 0}}, "softmax.cases = 0"),
    ({"push": {"fall": -1}}, "push.fall = -1"),
    ({"model": {}}, "model = 'nothing': give either result"),
    ({"model": {"model": "/nowhere"}}, "model.model = '/nowhere'"),
    ({"data": {"source": "file", "path": "pairs.jsonl"}}, "give a model for other rows"),
    ({"base": {"source": "some/model"}}, "give another model as model.model"),
    ({"model": {"result": "DATA"}}, "of stage data holds no model"),
    ({"model": {"result": "SFT"}, "data_result": "SFT"}, "of stage sft holds no train.jsonl"),
]


@pytest.mark.parametrize(
    ("flow", "settings", "message"),
    [
        *((SIMPLICITY, *case) for case in REFUSED_SPACES),
        (COUPLING, {"rates": [1, 1]}, "rates = (1.0, 1.0): name every positive multiple once"),
        (COUPLING, {"rates": [0]}, "rates = (0.0,): name every positive multiple once"),
        (COUPLING, {"readings": 900}, "readings = 900: SFT has"),
        *((SQUEEZING, *case) for case in REFUSED_PUSHES),
    ],
)
def test_what_cannot_be_learned_or_pushed_is_refused(
    flow: StagedFlow[Any], settings: dict[str, Any], message: str, analysed: Analysed
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        analysed.plan(flow, analysed.named(settings))
