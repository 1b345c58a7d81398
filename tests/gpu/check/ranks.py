"""Several ranks: what they exchange, every ZeRO stage, and how fast they train."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.runtime.launch.launcher import launch_ranks
from tests.gpu.check.machine import gpu_count
from tests.gpu.check.outcome import Check, Figure
from tests.gpu.check.shapes import LARGEST, SMALL, make_shape, shape_settings
from tests.training.small import apart, make_files, make_job, metrics, run_small, settings

ROOT = Path(__file__).parents[3]
STAGES = (0, 1, 2, 3)
STILL = {"optimizer": {"name": "sgd", "learning_rate": 1e-12}}


def rank_count() -> int:
    """As many as there are GPUs, up to four, which divide a batch; two on the CPU."""
    gpus = gpu_count()
    return 2 if gpus == 0 else max(n for n in (1, 2, 4) if n <= gpus)


def launch(module: str, folder: Path, job: Mapping[str, Any], ranks: int) -> dict[str, float]:
    """Runs a rank program; returns the figures that it wrote, if any."""
    file = folder / "job.json"
    file.write_text(json.dumps({"folder": str(folder), **job}))
    launch_ranks(
        module,
        file,
        ranks=ranks,
        logs=folder / "logs",
        environment={"PYTHONPATH": str(ROOT)},
        while_running=lambda: None,
    )
    figures = folder / "figures.json"
    return json.loads(figures.read_text()) if figures.exists() else {}


def exchange(folder: Path) -> Mapping[str, float]:
    return launch("tests.gpu.check.exchange_rank", folder, {}, rank_count())


def zero(folder: Path) -> Mapping[str, float]:
    """The small training by every stage, whole and resumed, and by the plain engine."""
    make_files(folder)
    engines: dict[str, dict[str, Any]] = {
        f"zero{stage}": {"zero_stage": stage, "dtype": "fp32"} for stage in STAGES
    }
    engines["bf16"] = {"zero_stage": 1, "dtype": "bf16"}
    cases = {
        name: settings(
            engine={"kind": "deepspeed", "ranks": rank_count(), **engine},
            **(STILL if name == "bf16" else {}),
            record_steps=[],
        ).model_dump(mode="json")
        for name, engine in engines.items()
    }
    job = {"inputs": str(folder), "cases": cases, "logits_bytes": {}}
    launch("tests.training.zero_stages", folder, job, rank_count())
    plain = run_small(folder, folder / "plain", settings(record_steps=[]))

    def done(name: str, which: str) -> Any:
        return make_job(folder, folder / name / which, settings())

    steps = [line for line in metrics(done("bf16", "whole")) if "train/margin" in line]
    values = {"bf16_margin": max(abs(line["train/margin"]) for line in steps)}
    for name in engines:
        values[f"{name}_resumed"] = apart(done(name, "whole"), done(name, "resumed"))
        if name != "bf16":
            values[f"{name}_from_plain"] = apart(plain, done(name, "whole"))
    return values


def speed(folder: Path) -> Mapping[str, float]:
    """DPO of the 410m shape on one GPU, in float32 and bf16, and on all; on the CPU, of little."""
    shape = LARGEST if gpu_count() else SMALL
    parameters = make_shape(folder, shape)
    values: dict[str, float] = {}
    ways = {"float32": (1, 0, "fp32")}
    if gpu_count():
        ways["bf16"] = (1, 1, "bf16")
    if gpu_count() != 1:
        ways["all"] = (rank_count(), 2, "bf16")
    for name, (ranks, stage, dtype) in ways.items():
        engine = {"kind": "deepspeed", "ranks": ranks, "zero_stage": stage, "dtype": dtype}
        job = {
            "config": shape_settings(shape, steps=8, engine=engine).model_dump(mode="json"),
            "tokens": shape.tokens,
            "parameters": parameters,
            "way": name,
        }
        values |= launch("tests.gpu.check.speed_rank", folder, job, ranks)
    if gpu_count() > 1:
        values["scaling"] = values["all_tokens_per_s"] / (
            rank_count() * values["bf16_tokens_per_s"]
        )
    return values


CHECKS = [
    Check(
        name="exchange",
        asserts="Ranks exchange tensors over NCCL, and objects, without a loss.",
        figures=(
            Figure(name="sum_error", means="error of a sum over ranks, float32", at_most=0.0),
            Figure(name="bf16_sum_error", means="the same in bf16", at_most=0.0),
            Figure(name="objects_lost", means="objects that did not arrive as sent", at_most=0.0),
            Figure(
                name="nccl",
                means="1 if GPU tensors travel over NCCL",
                at_least=1.0,
                needs_gpu=True,
            ),
            Figure(
                name="gb_per_s",
                means="bus bandwidth of a sum of 256 MB",
                unit="GB/s",
                at_least=5.0,
                needs_gpu=True,
                gpus=2,
            ),
        ),
        measure=exchange,
        stand_in="CPU ranks",
    ),
    Check(
        name="zero",
        asserts="Every ZeRO stage gives the plain engine's numbers and resumes to the bit.",
        figures=(
            *(
                Figure(
                    name=f"zero{stage}_from_plain",
                    means=f"largest difference of weights, ZeRO {stage} and one process",
                    at_most=2e-5,
                )
                for stage in STAGES
            ),
            *(
                Figure(
                    name=f"{name}_resumed",
                    means=f"largest difference of weights, {name} whole and resumed",
                    at_most=0.0,
                )
                for name in (*(f"zero{stage}" for stage in STAGES), "bf16")
            ),
            Figure(
                name="bf16_margin",
                means="largest DPO margin in bf16 where nothing moves; 1e-2 of an fp32 reference",
                unit="nats",
                at_most=1e-3,
            ),
        ),
        measure=zero,
        stand_in="CPU ranks",
    ),
    Check(
        name="speed",
        asserts="DPO of Pythia-410m's shape uses the GPU, and takes the memory that is planned.",
        figures=(
            *(
                Figure(
                    name=f"{name}_{figure}",
                    means=f"{means}, {words}",
                    unit=unit,
                    at_least=floors.get(name) if figure == "mfu" else None,
                    needs_gpu=True,
                    gpus=2 if name == "all" else 1,
                )
                for floors in ({"float32": 0.3, "bf16": 0.05},)
                for name, words in (
                    ("float32", "one rank in float32"),
                    ("bf16", "one rank in bf16"),
                    ("all", "all ranks in bf16 by ZeRO 2"),
                )
                for figure, means, unit in (
                    ("tokens_per_s", "tokens of pairs a second", "1/s"),
                    ("mfu", "6 operations a weight and token, of the rate of products here", ""),
                    ("peak_gb", "most memory that tensors of a rank took", "GB"),
                )
            ),
            Figure(
                name="float32_bytes_per_parameter",
                means="weights, gradients and AdamW's state, one rank in float32",
                unit="bytes",
                at_most=16.5,
                needs_gpu=True,
            ),
            Figure(
                name="scaling",
                means="speed on all ranks, of as many times the speed on one",
                at_least=0.6,
                needs_gpu=True,
                gpus=2,
            ),
        ),
        measure=speed,
        stand_in="CPU ranks",
    ),
]
