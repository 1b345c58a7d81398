"""Trainings and stages of one process: the same bits each time, and memory given back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from tests.flows.analysed import Analysed
from tests.gpu.check.machine import gpu_count
from tests.gpu.check.outcome import Check, Figure
from tests.gpu.check.shapes import LARGE, SMALL, make_shape, shape_settings
from tests.gpu.paths_stages import run_stages
from tests.training.small import apart, make_files, run_small, settings, state


def again(folder: Path) -> Mapping[str, float]:
    """Small trainings with records, and, on GPUs, a model whose kernels run over many blocks."""
    make_files(folder)
    whole, other = (run_small(folder, folder / name, settings()) for name in ("one", "other"))
    resumed = run_small(folder, folder / "resumed", settings(), state(whole, 3))
    values = {"training_again": apart(whole, other), "training_resumed": apart(whole, resumed)}
    shape = LARGE if gpu_count() else SMALL
    make_shape(folder / "shape", shape)
    config = shape_settings(shape, steps=2)
    pair = [run_small(folder / "shape", folder / f"shape-{n}", config) for n in range(2)]
    return values | {"large_training_again": apart(*pair)}


def memory(folder: Path) -> Mapping[str, float]:
    if gpu_count():
        Analysed(folder / "home")
    else:
        run_stages(folder)
    return {"left_bytes": float(torch.cuda.memory_allocated())}


CHECKS = [
    Check(
        name="trainings",
        asserts="DPO ends with the same bits when it is repeated and when it is resumed.",
        figures=(
            Figure(
                name="training_again",
                means="largest difference between the weights of two trainings",
                at_most=0.0,
            ),
            Figure(
                name="training_resumed",
                means="the same of a training and one resumed from its third step",
                at_most=0.0,
            ),
            Figure(
                name="large_training_again",
                means="the same of two trainings of the 160m shape on pairs of HH's lengths",
                at_most=0.0,
                needs_gpu=True,
            ),
        ),
        measure=again,
        stand_in="pretended GPU",
    ),
    Check(
        name="stages",
        asserts="Stages of the flow's process lock their GPU and give its memory back.",
        figures=(
            Figure(
                name="left_bytes",
                means="memory that tensors take after three stages",
                unit="bytes",
                at_most=2.0**20,
                needs_gpu=True,
            ),
        ),
        measure=memory,
        stand_in="pretended GPU",
    ),
]
