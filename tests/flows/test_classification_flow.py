"""The flow of classifiers' forces and learning paths: its stages, its page, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynolab.claims.verdict import Verdict
from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.results.classification import (
    ClassifierState,
    ClassInfluence,
    EpochInfluence,
    ExamplePath,
    KernelRanks,
    PathScores,
)
from flows.classification import (
    ClassificationParameters,
    classification_steps,
    resolved_classification,
)
from flows.parameters import load_parameters, validated
from tasks.runtime.pipeline import plan
from tests.flows.chapters import Chapters
from tests.flows.lab import ROOT

SMALL = {
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
}


def steps_of(**changes: Any):  # type: ignore[no-untyped-def]
    parameters = validated(ClassificationParameters, SMALL | changes)
    return classification_steps(resolved_classification(parameters))


def test_the_stages_make_a_page_with_its_claims(tmp_path: Path) -> None:
    lab, steps = Chapters(tmp_path), steps_of()
    assert [step.name for step in steps] == [
        "images",
        "forces-lenet",
        "forces-mlp",
        "learning-paths",
        "classification-page",
    ]
    results = lab.run(steps)
    forces, paths = lab.folder(results["forces-mlp"]), lab.folder(results["learning-paths"])
    assert len(list(read_rows(forces / "states.jsonl", ClassifierState))) == 2 * 2 * 3
    assert len(list(read_rows(forces / "ranks.jsonl", KernelRanks))) == 2 * 2 * 3
    assert len(list(read_rows(forces / "influence.jsonl", ClassInfluence))) == 2
    scores = list(read_rows(paths / "scores.jsonl", PathScores))
    assert [(score.data, score.seed) for score in scores] == [
        ("toy", 0),
        ("toy", 1),
        ("images", 0),
        ("images", 1),
    ]
    assert sum(scores[2].wrong) == 20
    assert {row.group for row in read_rows(paths / "paths.jsonl", ExamplePath)} == {
        "easy",
        "medium",
        "hard",
        "mislabelled",
    }
    epochs = list(read_rows(paths / "epochs.jsonl", EpochInfluence))
    assert all(epoch.own >= 0 for epoch in epochs)
    page = lab.folder(results["classification-page"])
    text = (page / "classification.html").read_text()
    for title in ("How classifiers learn", "the pairing of classes", "Zig-zag finds"):
        assert title in text
    claims = {claim.id for claim in read_rows(page / "claims.jsonl", Verdict)}
    assert {"lenet/four_nine", "mlp/ranks", "toy/zigzag", "images/others"} <= claims
    assert "mlp/accuracy" in results["classification-page"].metrics
    assert {one.state for one in plan(steps, lab.platform)} == {"cached"}


def test_people_s_labels_are_followed_where_there_are_any(tmp_path: Path) -> None:
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
    lab, steps = Chapters(tmp_path), steps_of(data=data, networks=["mlp"])
    results = lab.run(steps)
    folder = lab.folder(results["learning-paths"])
    known = {row.data for row in read_rows(folder / "scores.jsonl", PathScores)}
    assert known == {"toy", "images", "human"}
    page = lab.folder(results["classification-page"])
    claims = {claim.id for claim in read_rows(page / "claims.jsonl", Verdict)}
    assert "human/zigzag" in claims
    assert "mlp/four_nine" not in claims


def test_paths_are_followed_only_where_they_are_asked_for(tmp_path: Path) -> None:
    lab, steps = Chapters(tmp_path), steps_of(networks=["mlp"], paths=None)
    assert [step.name for step in steps] == ["images", "forces-mlp", "classification-page"]
    page = lab.folder(lab.run(steps)["classification-page"])
    claims = {claim.id for claim in read_rows(page / "claims.jsonl", Verdict)}
    assert "mlp/ranks" in claims
    assert not any(claim.startswith(("toy/", "images/")) for claim in claims)


def test_a_network_more_leaves_the_others_as_they_were() -> None:
    before, after = (
        {step.name: step.config for step in steps_of(networks=networks)}
        for networks in (["lenet"], ["lenet", "transformer"])
    )
    assert set(after) - set(before) == {"forces-transformer"}
    assert after["forces-lenet"] == before["forces-lenet"]


def forces(**changes: object) -> dict[str, object]:
    return {"forces": SMALL["forces"] | changes}  # type: ignore[operator]


REFUSED = [
    ({"networks": ["lenet", "lenet"]}, "name every network once"),
    ({"networks": ["vgg"]}, "networks.0 = 'vgg'"),
    ({"seeds": [1, 1]}, "name every seed once"),
    ({"data": {"source": "idx", "path": "/nowhere"}}, "data.path = '/nowhere'"),
    ({"paths": {"noise": 1.0}}, "paths.noise = 1.0"),
    ({"data": {"train": 20}}, "a batch holds 32 images"),
    (forces(epochs=[0, 3]), "training has 2 epochs"),
    (forces(epochs=[1, 0]), "rising from 0"),
    (forces(learning_rates=[0.1]), "must be one of them"),
    (forces(training={"learning_rate": 0.05, "epochs": 2, "momentum": 0.9}), "both must be 0"),
    ({"paths": {"training": {"momentum": 0.9}}}, "paths.training = {'momentum': 0.9"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_trains(changes, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError) as refused:
        steps_of(**changes)
    assert message in str(refused.value)


def test_the_study_file_holds_what_it_says() -> None:
    file = ROOT / "deploy" / "studies" / "classification_builtin.yaml"
    known = load_parameters(ClassificationParameters, file)
    assert known.networks == ("lenet", "mlp", "transformer")
    assert known.data.source == "digits"
