"""The chapters as flows: their stages, their pages, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dynolab.claims.verdict import Verdict
from dynolab.report.style import DARK
from experiments.chapters.flows import FLOWS
from experiments.chapters.page import read_frame
from flows.flow import Plan
from flows.parameters.parse import load_parameters
from tasks.runtime.open_platform import planning_platform
from tasks.runtime.work import StageResult
from tests.flows.analysed import WORLD, Analysed
from tests.flows.in_process import step_names
from tests.flows.lab import ROOT

QUICK = {
    "examples": 60,
    "taus": [0, 1, 4],
    "pretraining": {"epochs": 2},
    "finetuning": {"epochs": 2},
}
TRAINING = {"engine": {"kind": "plain", "ranks": 1}, "steps": 4, "batch_size": 4}
FEW = {"cases": 50, "classes": [5], "shown": [20], "shape_cases": 20}
SPACE = {"attributes": 2, "values": 2, "steps": 4}
SMALL: dict[str, dict[str, Any]] = {
    "classification": {
        "name": "small",
        "seeds": [0, 1],
        "networks": ["lenet", "mlp"],
        "data": {"train": 100, "validation": 20, "test": 60},
        "forces": {
            "training": {"learning_rate": 0.05, "epochs": 2},
            "learning_rates": [0.05, 0.1],
            "epochs": [0, 1, 2],
            "watched": 2,
            "influence_epochs": 1,
        },
        "paths": {
            "toy": {"examples": 60},
            "toy_training": {"epochs": 3},
            "training": {"epochs": 3},
            "shown": 1,
        },
    },
    "supervision": {
        "name": "small",
        "seeds": [0, 1],
        "noise": [0.0, 0.4],
        "data": {"train": 60, "validation": 20, "test": 40},
        "supervision": {"training": {"epochs": 3}},
        "speed": {"examples": 40, "steps": 5, "points": 3},
    },
    "transfer": {
        "name": "small",
        "seeds": [0, 1],
        "data": {"train": 200, "validation": 10, "test": 60},
        "digits": QUICK,
        "topics": QUICK,
        "texts": {"texts": 360},
    },
    "simplicity": {
        "name": "small",
        "seeds": [0, 1],
        "width": 8,
        "spaces": [SPACE, SPACE | {"attributes": 3, "sampled": 2}],
    },
    "coupling": {
        "data": {"world": WORLD.model_dump()},
        "base": {"training": TRAINING},
        "sft": {**TRAINING, "optimizer": {"learning_rate": 1e-4}},
        "preference": {**TRAINING, "objective": {"name": "dpo"}, "optimizer": {"name": "sgd"}},
        "rates": [1, 4],
        "readings": 2,
        "kernel": {"observed_pairs": 2, "updating_pairs": 3, "rank": 2, "probes": 2},
    },
    "squeezing": {
        "name": "small",
        "softmax": FEW,
        "push": {"pairs": 3},
        "model": {"result": "SFT"},
        "data_result": "DATA",
    },
}


def planned(lab: Analysed, flow: str, **changes: Any) -> Plan:
    return lab.plan(FLOWS[flow], lab.named(SMALL[flow] | changes))


def claims(lab: Analysed, page: StageResult) -> dict[str, Verdict]:
    return {claim.id: claim for claim in lab.rows(page, "claims.jsonl", Verdict)}


def frame(lab: Analysed, result: StageResult, table: str) -> pd.DataFrame:
    return read_frame([lab.folder(result)], f"{table}.jsonl")


@pytest.mark.parametrize(
    ("flow", "steps", "wanted_claims", "metric"),
    [
        (
            "classification",
            ["images", "forces-lenet", "forces-mlp", "learning-paths"],
            {"lenet/four_nine", "mlp/ranks", "toy/zigzag", "images/others"},
            "mlp/accuracy",
        ),
        (
            "supervision",
            ["images", "noise-0", "noise-40", "learning-speed"],
            {"supervision/0.4/filter_kd_over_one_hot", "speed/clean-noisy"},
            "noise_40/accuracy/filter_kd",
        ),
        (
            "transfer",
            ["images", "transfer-digits", "transfer-topics"],
            {"digits/energy", "topics/best/out", "digits/mismatch"},
            "topics/linear/tau_4/accuracy",
        ),
        ("simplicity", ["mappings-2x2", "mappings-3x2"], {"2×2/speed", "3×2/speed"}, "trained"),
        (
            "coupling",
            ["data", "base", *(f"{arm}-{n}" for n in (0, 1) for arm in ("sft", "dpo", "kernel"))],
            {"0.0001/sft", "0.0004/preference"},
            "kernel/rank_correlation",
        ),
        (
            "squeezing",
            ["softmax", "push"],
            {"softmax/label_falls", "model/last_layer/rejected"},
            "left_over/rejected/first_order",
        ),
    ],
)
def test_the_stages_make_a_page_with_its_claims(
    flow: str, steps: list[str], wanted_claims: set[str], metric: str, analysed: Analysed
) -> None:
    """A dark screen has a partner for every colour of the figures."""
    plan = planned(analysed, flow)
    assert step_names(plan) == [*steps, f"{flow}-page"]
    page = analysed.run_plan(plan)[f"{flow}-page"]
    assert wanted_claims <= claims(analysed, page).keys()
    assert metric in page.metrics
    assert analysed.to_run(plan) == set()
    figures = analysed.folder(page, "figures")
    colours = {
        colour
        for file in figures.glob("*.json")
        for colour in re.findall(r"#[0-9a-f]{6}", file.read_text())
    }
    assert colours and colours <= set(DARK)


def test_squeezing_pushes_the_answers_of_a_finished_training(analysed: Analysed) -> None:
    page = analysed.run_plan(planned(analysed, "squeezing"))["squeezing-page"]
    found = claims(analysed, page)
    assert found["softmax/label_falls"].outcome == "holds"
    assert found["model/last_layer/rejected"].measured[0].n == 3
    assert page.metrics["left_over/rejected/first_order"] < 0.1


def test_squeezing_needs_no_language_model(analysed: Analysed) -> None:
    plan = analysed.plan(FLOWS["squeezing"], {"softmax": FEW, "push": None})
    assert step_names(plan) == ["softmax", "squeezing-page"]
    page = analysed.run_plan(plan)["squeezing-page"]
    assert not any(name.startswith("model/") for name in claims(analysed, page))


def test_the_built_in_chapter_trains_its_own_model_with_one_seed() -> None:
    file = ROOT / "deploy" / "studies" / "squeezing_builtin.yaml"
    flow = FLOWS["squeezing"]
    plan = flow.plan(load_parameters(flow.parameters, file, ["seed=3"]), planning_platform())
    assert plan.existing == {}
    assert step_names(plan) == ["softmax", "data", "base", "model", "push", "squeezing-page"]
    configs = {step.name: step.config.model_dump() for step in plan.steps}
    assert {configs[name]["seed"] for name in ("softmax", "data", "base", "model")} == {3}
    assert configs["model"]["engine"]["kind"] == "plain"


def test_coupling_reads_the_kernel_along_both_trainings(analysed: Analysed) -> None:
    page = analysed.run_plan(planned(analysed, "coupling"))["coupling-page"]
    during, after, *others = claims(analysed, page).values()
    assert [measured.name for measured in during.measured] == ["start to step-2", "step-2 to sft"]
    assert [measured.name for measured in after.measured] == ["sft to preference"]
    assert {claim.topic for claim in (during, after, *others)} == {
        "learning rate 0.0001",
        "learning rate 0.0004",
    }


def test_a_network_for_images_leaves_vectors_to_an_mlp(analysed: Analysed) -> None:
    results = analysed.run_plan(planned(analysed, "supervision", model="lenet", noise=[0.4]))
    kinds = set(frame(analysed, results["learning-speed"], "speeds").kind)
    assert {"clean", "noisy", "coherent", "contradictory"} <= kinds


def test_people_s_labels_are_followed_where_there_are_any(
    analysed: Analysed, tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = random.random((90, 8, 8)) / 2 + labels[:, None, None] / 4
    human = np.eye(3)[labels] * 5 + random.random((90, 3))
    np.savez(tmp_path / "a.npz", images=images, labels=labels, human=human)
    data = {
        "source": "arrays",
        "path": str(tmp_path / "a.npz"),
        "classes": 3,
        "train": 60,
        "validation": 9,
        "test": 21,
    }
    results = analysed.run_plan(planned(analysed, "classification", data=data, networks=["mlp"]))
    scores = frame(analysed, results["learning-paths"], "scores")
    assert set(scores.data) == {"toy", "images", "human"}
    shown = claims(analysed, results["classification-page"])
    assert "human/zigzag" in shown and "mlp/four_nine" not in shown


def test_paths_and_texts_are_followed_only_where_they_are_asked_for(analysed: Analysed) -> None:
    plan = planned(analysed, "classification", networks=["mlp"], paths=None)
    assert step_names(plan) == ["images", "forces-mlp", "classification-page"]
    shown = claims(analysed, analysed.run_plan(plan)["classification-page"])
    assert "mlp/ranks" in shown
    assert not any(claim.startswith(("toy/", "images/")) for claim in shown)
    plan = planned(analysed, "transfer", texts=None)
    assert step_names(plan) == ["images", "transfer-digits", "transfer-page"]


@pytest.mark.parametrize(
    ("flow", "before", "after", "new", "kept"),
    [
        (
            "classification",
            {"networks": ["lenet"]},
            {"networks": ["lenet", "transformer"]},
            "forces-transformer",
            "forces-lenet",
        ),
        ("supervision", {}, {"noise": [0.0, 0.2, 0.4]}, "noise-20", "noise-40"),
    ],
    ids=["a network", "a level"],
)
def test_one_more_leaves_the_others_as_they_were(
    flow: str,
    before: dict[str, Any],
    after: dict[str, Any],
    new: str,
    kept: str,
    analysed: Analysed,
) -> None:
    fewer, more = (
        {step.name: step.config for step in planned(analysed, flow, **changes).steps}
        for changes in (before, after)
    )
    assert set(more) - set(fewer) == {new}
    assert more[kept] == fewer[kept]
