"""What this machine's GPUs do beside what the library relies on: `make check-gpu`.

    python -m tests.gpu.check [CHECK…]

Each check runs in a process of its own for at most five minutes, so that none ends the others.
Prints every figure with its bound, writes them to `gpu.json` in the folder of reports, and exits
with 1 if a bound is missed. Without a GPU the same programs run on the CPU, and what only a GPU can
tell is not judged.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attend

from dynolab.distributed import device
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, force_map, side_gradients, split_step
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.likelihood.arithmetic import reproducible
from dynolab.training.config import TrainConfig
from tasks.runtime.launch.launcher import launch_ranks
from tasks.runtime.system.computing import COMPUTING
from tasks.runtime.system.secret_files import own_folder
from tasks.runtime.system.settings import Settings
from tests.benchmarks.figures import ROOT
from tests.benchmarks.models import PYTHIA_160M, pythia
from tests.forces.families import DPO_LOSS, Case, build
from tests.forces.small_models import (
    neox,
    pair,
    pairs,
    relative,
    train_steps,
    with_reference,
)
from tests.training.small import (
    apart,
    make_files,
    make_job,
    metrics,
    run_small,
    settings,
    state,
)

CHECK_SECONDS = 300.0
GPUS = torch.cuda.device_count() if os.environ.get("DS_ACCELERATOR") != "cpu" else 0
RANKS = max(n for n in (1, 2, 4) if n <= GPUS) if GPUS else 2
"""As many as there are GPUs, up to four, which divide a batch; two on the CPU."""
MEMORY = 2**31
"""Bytes that a force map is given."""
STAGES = (0, 1, 2, 3)


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def products(_: Path) -> dict[str, float]:
    """Errors of matrix products, of their norm; and whether forces refuse TF32."""
    left, right = (numbers(1024, 1024, seed=seed) for seed in (0, 1))

    def error(dtype: torch.dtype) -> float:
        made = left.to(device(), dtype) @ right.to(device(), dtype)
        return relative(made.cpu().double(), left @ right)

    values = {"float32_error": error(torch.float32), "bf16_error": error(torch.bfloat16)}
    torch.set_float32_matmul_precision("high")
    try:
        PolicyFunction(neox(dtype=torch.float32).to(device()))
    except ConfigError:
        return values | {"tf32_refused": 1.0}
    return values | {"tf32_refused": 0.0}


def attention(_: Path) -> dict[str, float]:
    """Largest differences between the gradients of two passes, as trainings take attention."""
    mask = torch.ones(256, 256, dtype=torch.bool).tril().to(device())

    def gradients(act: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        parts = [
            numbers(4, 8, 256, 64, seed=seed).to(device(), torch.float32).requires_grad_()
            for seed in range(3)
        ]
        return torch.autograd.grad(act(*parts).square().sum(), parts)

    def again(act: Callable[..., Tensor]) -> float:
        both = zip(gradients(act), gradients(act), strict=True)
        return max(float((one - other).abs().max()) for one, other in both)

    with reproducible(device()):
        return {
            "gradient_again": again(lambda *parts: attend(*parts, is_causal=True)),
            "masked_gradient_again": again(lambda *parts: attend(*parts, attn_mask=mask)),
        }


def forces(_: Path) -> dict[str, float]:
    """Errors of force maps beside the CPU's in float64, and the memory of a large one."""
    values = {"float64_error": 0.0, "float32_error": 0.0}
    wanted = {
        "truth": ("cpu", torch.float64),
        "float64_error": (device(), torch.float64),
        "float32_error": (device(), torch.float32),
    }
    for family in ("gpt2", "gpt_neox", "llama_tied"):
        examples = with_reference(build(family), pairs(2))
        maps = {
            name: Case(PolicyFunction(build(family).to(where, dtype), dtype), examples).map()
            for name, (where, dtype) in wanted.items()
        }
        for name, worst in values.items():
            # CPU and GPU round rotary tables differently, which models compute in float32.
            if name == "float32_error" or family == "gpt2":
                values[name] = max(worst, relative(maps[name].double(), maps["truth"]))
    if not GPUS:
        return values
    model = pythia(**PYTHIA_160M)
    examples = with_reference(model, [pair(0, 134, 62, 47)])
    policy = PolicyFunction(model.to(device()))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    force_map(policy, [examples[0].chosen], examples, DPO_LOSS, memory_bytes=MEMORY)
    return values | {"memory_over_given": (torch.cuda.max_memory_allocated() - before) / MEMORY}


def trainings(folder: Path) -> dict[str, float]:
    """Largest differences between the weights of trainings that should be the same, and how many
    files of probes they wrote that differ from the first."""
    make_files(folder)
    whole, other = (run_small(folder, folder / name, settings()) for name in ("one", "other"))
    resumed = run_small(folder, folder / "resumed", settings(), state(whole, 3))
    first, *others = ((job.output / "probes.jsonl").read_text() for job in (whole, other, resumed))
    return {
        "again": apart(whole, other),
        "resumed": apart(whole, resumed),
        "probes_differ": float(sum(probes != first for probes in others)),
        "examples_per_s": statistics.median(
            line["train/examples_per_s"]
            for line in metrics(whole)
            if "train/examples_per_s" in line
        ),
    }


def step(_: Path) -> dict[str, float]:
    """Seconds that parts of an analysis take of a DPO step on eight pairs, and, on a GPU, the part
    of the ledger's time in which the GPU computes.

    Also on a GPU: where weights wait in main memory, the seconds, the error, and what the GPU has
    over the bytes of the weights."""
    model = pythia(**PYTHIA_160M) if GPUS else neox(dtype=torch.float32)
    sizes = (134, 62, 47) if GPUS else (4, 5, 4)
    examples = with_reference(model, [pair(seed, *sizes) for seed in range(8)])
    plain = {"objective": {"name": "dpo"}, "engine": {"kind": "plain", "ranks": 1}}
    (record,) = train_steps(model, TrainConfig.model_validate(plain), examples, steps=1).records
    policy = PolicyFunction(model.to(device()))
    answers = [Functional.mean("", [example.chosen]) for example in examples]

    def seconds(work: Callable[[], object]) -> float:
        begun = time.perf_counter()
        work()
        if GPUS:
            torch.cuda.synchronize()
        return time.perf_counter() - begun

    def account() -> object:
        return Ledger(policy, answers).enter(record)

    for warm in (account, partial(split_step, record, policy)):
        warm()
    values = {
        "gradients_s": seconds(partial(side_gradients, record, policy)),
        "split_s": seconds(partial(split_step, record, policy)),
        "ledger_step_s": seconds(account),
    }
    if GPUS:
        with torch.profiler.profile() as profile:
            whole = seconds(account)
        busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
        print(profile.key_averages().table(sort_by="self_device_time_total", row_limit=12))
        values["ledger_gpu_busy"] = busy / whole
        waiting = PolicyFunction(copy.deepcopy(model).cpu(), device=device())
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        values["streamed_split_s"] = seconds(partial(split_step, record, waiting))
        most = torch.cuda.max_memory_allocated() - before
        values["streamed_bytes_over_weights"] = most / flatten(record.before).nbytes
        parts = [flatten(split_step(record, own).from_chosen).cpu() for own in (policy, waiting)]
        values["streamed_error"] = relative(parts[1], parts[0])
    return values


def zero(folder: Path) -> dict[str, float]:
    """The small training by every ZeRO stage, whole and resumed, beside the plain engine."""
    make_files(folder)
    engines = {
        f"zero{stage}": {"kind": "deepspeed", "ranks": RANKS, "zero_stage": stage}
        for stage in STAGES
    }
    cases = {
        name: settings(engine=engine, record_steps=[]).model_dump(mode="json")
        for name, engine in engines.items()
    }
    (folder / "job.json").write_text(
        json.dumps({"inputs": str(folder), "cases": cases, "logits_bytes": {}})
    )
    launch_ranks(
        "tests.training.zero_stages",
        folder / "job.json",
        ranks=RANKS,
        logs=folder / "logs",
        environment={"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        while_running=lambda: None,
    )
    plain = run_small(folder, folder / "plain", settings(record_steps=[]))
    values = {}
    for name in engines:
        whole, resumed = (
            make_job(folder, folder / name / which, settings()) for which in ("whole", "resumed")
        )
        values[f"{name}_resumed"] = apart(whole, resumed)
        values[f"{name}_from_plain"] = apart(plain, whole)
    return values


class Check(NamedTuple):
    """A function from an empty folder to figures, with their bounds.

    `on_gpu`: those that are judged on a GPU alone.
    """

    measure: Callable[[Path], Mapping[str, float]]
    at_most: Mapping[str, float]
    at_least: Mapping[str, float] = {}
    on_gpu: frozenset[str] = frozenset()


CHECKS = {
    "products": Check(products, {"float32_error": 1e-5, "bf16_error": 1e-2}, {"tf32_refused": 1.0}),
    "attention": Check(
        attention,
        {"gradient_again": 0.0, "masked_gradient_again": 0.0},
        on_gpu=frozenset({"gradient_again", "masked_gradient_again"}),
    ),
    "forces": Check(
        forces,
        {"float64_error": 1e-9, "float32_error": 1e-4, "memory_over_given": 1.0},
        on_gpu=frozenset({"memory_over_given"}),
    ),
    "trainings": Check(trainings, {"again": 0.0, "resumed": 0.0, "probes_differ": 0.0}),
    "step": Check(step, {"streamed_error": 1e-4}, on_gpu=frozenset({"streamed_error"})),
    "zero": Check(
        zero,
        {f"zero{stage}_resumed": 0.0 for stage in STAGES}
        | {f"zero{stage}_from_plain": 2e-5 for stage in STAGES},
    ),
}


def measured(name: str, folder: Path) -> dict[str, float]:
    """A check's figures, measured in a process of its own; none if it fails or takes too long."""
    try:
        subprocess.run(
            [sys.executable, "-m", "tests.gpu.check", "--one", name, str(folder)],
            env={**COMPUTING, **os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=sys.stderr,
            timeout=CHECK_SECONDS,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return {}
    values: dict[str, float] = json.loads((folder / "figures.json").read_text())
    return values


def judged(name: str, values: Mapping[str, float], gpus: int) -> list[dict[str, Any]]:
    """A check's figures with their bounds and verdicts: met, missed, not judged or no bound."""
    check, rows = CHECKS[name], []
    for figure in dict.fromkeys([*check.at_most, *check.at_least, *values]):
        value, low, high = values.get(figure), check.at_least.get(figure), check.at_most.get(figure)
        if figure in check.on_gpu and not gpus:
            verdict = "not judged: no GPU"
        elif value is None:
            verdict = "missed: not measured"
        elif low is None and high is None:
            verdict = "no bound"
        else:
            met = value <= high if high is not None else low is not None and value >= low
            verdict = "met" if met else "missed"
        rows.append(
            {
                "check": name,
                "figure": figure,
                "value": value,
                "at_most": high,
                "at_least": low,
                "verdict": verdict,
            }
        )
    return rows


def main(names: list[str]) -> int:
    """Runs the checks; the exit code is 1 if a bound is missed."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dynolab-check-") as scratch:
        for name in names or CHECKS:
            folder = Path(scratch, name)
            folder.mkdir()
            rows += judged(name, measured(name, folder), GPUS)
    print(pd.DataFrame(rows).to_string(index=False, na_rep=""))
    file = own_folder(Settings.from_environment().home) / "reports" / "gpu.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        json.dumps({"torch": torch.__version__, "gpus": GPUS, "figures": rows}, indent=1) + "\n"
    )
    print(f"{file} has all figures")
    return int(any(row["verdict"].startswith("missed") for row in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        name, folder = sys.argv[2:]
        figures = dict(CHECKS[name].measure(Path(folder)))
        Path(folder, "figures.json").write_text(json.dumps(figures))
    else:
        sys.exit(main(sys.argv[1:]))
