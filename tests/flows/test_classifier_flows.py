"""The flows that train classifiers: their stages, their pages, and what they refuse."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dynolab.chapters.page import read_frame
from dynolab.claims.verdict import Verdict
from dynolab.errors import ConfigError
from flows.flow import Plan, StagedFlow
from flows.parameters import load_parameters
from flows.registry import load_flow
from tasks.runtime.work import StageResult
from tests.flows.in_process import InProcess, step_names
from tests.flows.lab import ROOT

QUICK = {
    "examples": 60,
    "taus": [0, 1, 4],
    "pretraining": {"epochs": 2},
    "finetuning": {"epochs": 2},
}
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
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> InProcess:
    """One store for all: what flows and tests share is computed once."""
    return InProcess(tmp_path_factory.mktemp("classifiers"))


def planned(lab: InProcess, flow: str, **changes: Any) -> Plan:
    return lab.plan(staged(flow), SMALL[flow] | changes)


def staged(name: str) -> StagedFlow[Any]:
    flow = load_flow(name)
    assert isinstance(flow, StagedFlow)
    return flow


def frame(lab: InProcess, result: StageResult, table: str) -> pd.DataFrame:
    return read_frame([lab.folder(result)], f"{table}.jsonl")


def claims(lab: InProcess, page: StageResult) -> set[str]:
    return {claim.id for claim in lab.rows(page, "claims.jsonl", Verdict)}


@pytest.mark.parametrize(
    ("flow", "steps", "wanted_claims", "metric"),
    [
        pytest.param(
            "classification",
            ["images", "forces-lenet", "forces-mlp", "learning-paths"],
            {"lenet/four_nine", "mlp/ranks", "toy/zigzag", "images/others"},
            "mlp/accuracy",
            id="classification",
        ),
        pytest.param(
            "supervision",
            ["images", "noise-0", "noise-40", "learning-speed"],
            {"supervision/0.4/filter_kd_over_one_hot", "speed/clean-noisy"},
            "noise_40/accuracy/filter_kd",
            id="supervision",
        ),
        pytest.param(
            "transfer",
            ["images", "transfer-digits", "transfer-topics"],
            {"digits/energy", "topics/best/out", "digits/mismatch"},
            "topics/linear/tau_4/accuracy",
            id="transfer",
        ),
    ],
)
def test_the_stages_make_a_page_with_its_claims(
    flow: str,
    steps: list[str],
    wanted_claims: set[str],
    metric: str,
    lab: InProcess,
) -> None:
    plan = planned(lab, flow)
    assert step_names(plan) == [*steps, f"{flow}-page"]
    page = lab.run_plan(plan)[f"{flow}-page"]
    assert wanted_claims <= claims(lab, page)
    assert metric in page.metrics
    assert lab.to_run(plan) == set()


def test_forces_and_learning_paths_have_all_their_rows(lab: InProcess) -> None:
    results = lab.run_plan(planned(lab, "classification"))
    forces, paths = results["forces-mlp"], results["learning-paths"]
    counts = [len(frame(lab, forces, name)) for name in ("states", "ranks", "influence")]
    assert counts == [2 * 2 * 3, 2 * 2 * 3, 2]
    scores = frame(lab, paths, "scores")
    assert scores[["data", "seed"]].values.tolist() == [
        ["toy", 0],
        ["toy", 1],
        ["images", 0],
        ["images", 1],
    ]
    assert sum(scores.wrong[2]) == 20
    assert set(frame(lab, paths, "paths").group) == {"easy", "medium", "hard", "mislabelled"}
    assert (frame(lab, paths, "epochs").own >= 0).all()


def test_every_supervision_and_every_transfer_has_its_rows(lab: InProcess) -> None:
    noisy = lab.run_plan(planned(lab, "supervision"))["noise-40"]
    arms, detections = (frame(lab, noisy, name) for name in ("supervision", "detections"))
    assert len(arms) == 7 * 2 and len(detections) >= 3 * 2
    transfers = lab.run_plan(planned(lab, "transfer"))
    for name in ("transfer-digits", "transfer-topics"):
        assert len(frame(lab, transfers[name], "transfer")) == 4 * 3 * 2


def test_a_network_for_images_leaves_vectors_to_an_mlp(lab: InProcess) -> None:
    plan = planned(lab, "supervision", model="lenet", noise=[0.4])
    results = lab.run_plan(plan)
    kinds = set(frame(lab, results["learning-speed"], "speeds").kind)
    assert {"clean", "noisy", "coherent", "contradictory"} <= kinds


def test_people_s_labels_are_followed_where_there_are_any(lab: InProcess, tmp_path: Path) -> None:
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
    results = lab.run_plan(planned(lab, "classification", data=data, networks=["mlp"]))
    scores = frame(lab, results["learning-paths"], "scores")
    assert set(scores.data) == {"toy", "images", "human"}
    shown = claims(lab, results["classification-page"])
    assert "human/zigzag" in shown and "mlp/four_nine" not in shown


def test_paths_are_followed_only_where_they_are_asked_for(lab: InProcess) -> None:
    plan = planned(lab, "classification", networks=["mlp"], paths=None)
    assert step_names(plan) == ["images", "forces-mlp", "classification-page"]
    shown = claims(lab, lab.run_plan(plan)["classification-page"])
    assert "mlp/ranks" in shown
    assert not any(claim.startswith(("toy/", "images/")) for claim in shown)


def test_texts_can_be_left_out(lab: InProcess) -> None:
    plan = planned(lab, "transfer", texts=None)
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
    lab: InProcess,
) -> None:
    fewer, more = (
        {step.name: step.config for step in planned(lab, flow, **changes).steps}
        for changes in (before, after)
    )
    assert set(more) - set(fewer) == {new}
    assert more[kept] == fewer[kept]


def forces(**changes: object) -> dict[str, Any]:
    return {"forces": SMALL["classification"]["forces"] | changes}


REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "classification": [
        ({"networks": ["lenet", "lenet"]}, "name every network once"),
        ({"networks": ["vgg"]}, "networks.0 = 'vgg'"),
        ({"seeds": [1, 1]}, "name every seed once"),
        ({"data": {"source": "idx", "path": "/nowhere"}}, "data.path = '/nowhere'"),
        ({"paths": {"noise": 1.0}}, "paths.noise = 1.0"),
        ({"data": {"train": 20}}, "a batch needs 32 images"),
        (forces(epochs=[0, 3]), "training has 2 epochs"),
        (forces(epochs=[1, 0]), "list rising values from 0"),
        (forces(learning_rates=[0.1]), "must be one of them"),
        (forces(training={"learning_rate": 0.05, "epochs": 2, "momentum": 0.9}), "both must be 0"),
        ({"paths": {"training": {"momentum": 0.9}}}, "paths.training = {'momentum': 0.9"),
    ],
    "supervision": [
        ({"noise": [1.0]}, "noise.0 = 1.0"),
        ({"noise": [-0.1]}, "noise.0 = -0.1"),
        ({"noise": [float("nan")]}, "noise.0 = nan"),
        ({"noise": [0.4, 0.4]}, "noise = [0.4, 0.4]: name every level once"),
        ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
        ({"seeds": []}, "seeds = []"),
        ({"data": {"source": "idx", "path": "/nowhere"}}, "data.path = '/nowhere'"),
        ({"speed": {"noise": 1.5}}, "speed.noise = 1.5"),
        ({"supervision": {"smoothing": 1.0}}, "supervision.smoothing = 1.0"),
    ],
    "transfer": [
        ({"first_digits": [0, 12]}, "first_digits = [0, 12]: name classes of 0 … 9"),
        ({"first_digits": [0]}, "both tasks need two at least"),
        ({"digits": QUICK | {"taus": [4, 1]}}, "digits.taus = [4, 1]"),
        ({"seeds": [0, 0]}, "seeds = [0, 0]: name every seed once"),
    ],
}


@pytest.mark.parametrize(
    ("flow", "changes", "message"),
    [(flow, *case) for flow, cases in REFUSED.items() for case in cases],
)
def test_what_cannot_work_is_refused_before_anything_trains(
    flow: str, changes: dict[str, Any], message: str, lab: InProcess
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        planned(lab, flow, **changes)


@pytest.mark.parametrize(
    ("flow", "changes", "message"),
    [
        (
            "supervision",
            {"data": SMALL["supervision"]["data"] | {"classes": 4}},
            "labels must lie in 0 … 3",
        ),
        (
            "transfer",
            {"first_topics": [0, 40]},
            r"first_topics = \[0, 40\]: name classes of 0 … 11",
        ),
    ],
    ids=["labels", "topics"],
)
def test_classes_that_are_not_there_are_refused_by_the_stage(
    flow: str, changes: dict[str, Any], message: str, lab: InProcess
) -> None:
    plan = planned(lab, flow, **changes)
    with pytest.raises(ConfigError, match=message):
        lab.run_plan(plan)


@pytest.mark.parametrize(
    ("flow", "settings"),
    [
        (
            "classification",
            {"networks": ("lenet", "mlp", "transformer"), "data.source": "digits"},
        ),
        ("supervision", {"noise": (0.0, 0.2, 0.4, 0.6, 0.8)}),
        ("transfer", {"first_digits": (0, 1, 2, 3, 4)}),
    ],
)
def test_the_study_file_holds_what_it_says(flow: str, settings: dict[str, Any]) -> None:
    file = ROOT / "deploy" / "studies" / f"{flow}_builtin.yaml"
    known = load_parameters(staged(flow).parameters, file)
    assert {name: attrgetter(name)(known) for name in settings} == settings
