"""What the chapters refuse, most of it before anything runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dynolab.errors import ConfigError
from experiments.chapters.flows import FLOWS
from experiments.tests.chapters.test_chapter_flows import QUICK, SMALL, SPACE, planned
from tests.flows.analysed import Analysed


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
    "simplicity": [
        ({"spaces": [SPACE, SPACE]}, "spaces = ['2×2', '2×2']: name every space once"),
        ({"seeds": [1, 1]}, "seeds = [1, 1]: name every seed once"),
        ({"seeds": []}, "seeds"),
        ({"spaces": [{"attributes": 3, "values": 2}]}, "give a number of sampled bijections"),
        ({"spaces": [{**SPACE, "sampled": 9}]}, "choose 1 to 8"),
        ({"spaces": [{"attributes": 9, "values": 9, "sampled": 2}]}, "choose at most 81"),
        ({"spaces": [{"attributes": 2, "values": 1}]}, "spaces.0.values = 1"),
        ({"spaces": [{**SPACE, "learning_rate": 0}]}, "spaces.0.learning_rate = 0"),
    ],
    "coupling": [
        ({"rates": [1, 1]}, "rates = (1.0, 1.0): name every positive multiple once"),
        ({"rates": [0]}, "rates = (0.0,): name every positive multiple once"),
        ({"readings": 900}, "readings = 900: SFT has"),
    ],
    "squeezing": [
        ({"softmax": {"classes": [2]}}, "softmax.classes.0 = 2"),
        ({"softmax": {"cases": 0}}, "softmax.cases = 0"),
        ({"push": {"fall": -1}}, "push.fall = -1"),
        ({"model": {}}, "model = 'nothing': give either result"),
        ({"model": {"model": "/nowhere"}}, "model.model = '/nowhere'"),
        ({"data": {"source": "file", "path": "pairs.jsonl"}}, "give a model for other rows"),
        ({"base": {"source": "some/model"}}, "give another model as model.model"),
        ({"model": {"result": "DATA"}}, "of stage data holds no model"),
        ({"model": {"result": "SFT"}, "data_result": "SFT"}, "of stage sft holds no train.jsonl"),
    ],
}


@pytest.mark.parametrize(
    ("flow", "settings", "message"),
    [(flow, *case) for flow, cases in REFUSED.items() for case in cases],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    flow: str, settings: dict[str, Any], message: str, analysed: Analysed
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        analysed.plan(FLOWS[flow], analysed.named(settings))


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
    flow: str, changes: dict[str, Any], message: str, analysed: Analysed
) -> None:
    plan = planned(analysed, flow, **changes)
    with pytest.raises(ConfigError, match=message):
        analysed.run_plan(plan)
