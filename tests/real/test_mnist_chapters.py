"""Supervision under label noise and task heads on real MNIST digits, by their flows' stages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynolab.chapters.page import read_frame
from dynolab.chapters.supervision.claims import supervision_table
from dynolab.chapters.transfer.page import by_tau
from flows.chapter.digits import (
    SupervisionParameters,
    TransferParameters,
    plan_supervision,
    plan_transfer,
)
from flows.parameters import validated
from tests.flows.in_process import InProcess

pytestmark = [
    pytest.mark.study,
    pytest.mark.skipif("DYNOLAB_TEST_DATA" not in os.environ, reason="needs DYNOLAB_TEST_DATA"),
]
SEEDS = [100, 101, 102, 103, 104]


def mnist() -> dict[str, str]:
    folder = Path(os.environ["DYNOLAB_TEST_DATA"]) / "data" / "mnist"
    return {"source": "idx", "path": str(folder)}


def test_filter_kd_beats_one_hot_labels_on_real_digits(tmp_path: Path) -> None:
    parameters = validated(
        SupervisionParameters,
        {
            "seeds": SEEDS,
            "noise": [0.4],
            "data": mnist() | {"train": 1000},
            "speed": {"examples": 60, "steps": 20},
        },
    )
    lab = InProcess(tmp_path)
    results = lab.run_steps(plan_supervision(parameters, lab.platform).steps)
    folder = lab.folder(results["noise-40"])
    rows = read_frame([folder], "supervision.jsonl")
    gain = supervision_table(rows, 0.4).difference("filter_kd", "one_hot", "accuracy")
    assert gain.low > 0
    detections = read_frame([folder], "detections.jsonl").set_index("score")
    assert detections.auc[["filter", "path"]].min() > 0.8


def test_probing_trades_energy_for_features_that_stay_on_real_digits(tmp_path: Path) -> None:
    settings = {
        "examples": 100,
        "taus": [0, 4, 64],
        "strategies": ["linear"],
        "finetuning": {"learning_rate": 0.03, "batch_size": 20, "epochs": 40},
    }
    parameters = validated(
        TransferParameters,
        {"seeds": SEEDS, "data": mnist() | {"train": 1000}, "digits": settings, "texts": None},
    )
    lab = InProcess(tmp_path)
    results = lab.run_steps(plan_transfer(parameters, lab.platform).steps)
    linear = read_frame([lab.folder(results["transfer-digits"])], "transfer.jsonl")
    for name in ("energy", "distance"):
        values = by_tau(linear, name)
        assert (values[-1] < values[0]).all()
