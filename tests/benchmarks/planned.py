"""How far plans are from runs: memory and hours of trainings, bytes of a study's store."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from dynolab.costs.machines import this_machine
from dynolab.data.rows import Example, write_rows
from dynolab.data.sources.load import DataConfig
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from flows.planned_inputs import Inputs
from flows.stage_costs import Costs
from tasks.base import BaseConfig
from tasks.runtime.launch.launcher import launch_ranks
from tasks.training import RECORDS
from tests.benchmarks.counted_store import counted_store
from tests.benchmarks.pythia import PYTHIA_160M, pythia, pythia_tokenizer
from tests.benchmarks.resident import own_of_children, peak_above_start

ROOT = Path(__file__).parents[2]
SHAPES = {
    "10m": {"hidden_size": 96, "num_hidden_layers": 4, "intermediate_size": 384},
    "30m": {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 1024},
    "160m": PYTHIA_160M,
}
PROMPT, CHOSEN, REJECTED, ROWS = 134, 61, 46, 16
WORDS = (" the", " a", " dog", " house", " tree", " run", " red")

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("10m", {"ranks": 1, "zero_stage": 0}),
    ("30m", {"ranks": 1, "zero_stage": 0}),
    *(("30m", {"ranks": 2, "zero_stage": stage}) for stage in range(4)),
    *(("30m", {"ranks": 2, "zero_stage": stage, "dtype": "bf16"}) for stage in (2, 3)),
    ("160m", {"ranks": 1, "zero_stage": 0}),
    ("160m", {"ranks": 2, "zero_stage": 2}),
]
"""Shapes, and the engine's settings that their training is measured with."""


def write_model(folder: Path, shape: str) -> None:
    """A random model with Pythia's tokenizer."""
    pythia(**SHAPES[shape]).save_pretrained(folder)
    pythia_tokenizer().save_pretrained(folder)


def write_pairs(file: Path, count: int = ROWS) -> None:
    """Random words, each a token, as many as HH's rows have in the mean."""
    words = random.Random(0)

    def said(tokens: int) -> str:
        return "".join(words.choices(WORDS, k=tokens))

    write_rows(
        file,
        [
            Example(id=str(n), prompt=said(PROMPT), chosen=said(CHOSEN), rejected=said(REJECTED))
            for n in range(count)
        ],
    )


def trainings() -> dict[str, float]:
    """Largest relative errors over the settings; of hours, the ratio furthest from one."""
    errors, ratios = [], []
    machine = this_machine()
    with tempfile.TemporaryDirectory() as home:
        rows = Path(home) / "rows.jsonl"
        write_pairs(rows)
        for number, (shape, engine) in enumerate(SETTINGS):
            model = Path(home) / shape
            if not model.exists():
                write_model(model, shape)
            config = training(engine)
            data = DataConfig(source="file", path=str(rows), heldout_rows=0, probe_pairs=0)
            planned = Costs(Inputs(BaseConfig(source=str(model)), data), machine).training(config)
            most, seconds = measured(Path(home) / str(number), config, model, rows)
            errors.append(planned.rank_bytes / most - 1)
            ratios.append(planned.hours * 3600 / seconds)
            print(shape, engine, f"{errors[-1]:+.3f} {ratios[-1]:.2f}", flush=True)
    return {
        "memory_plan_error": max(map(abs, errors)),
        "time_plan_error": max(abs(ratio - 1) for ratio in ratios),
    }


def training(engine: dict[str, Any]) -> TrainConfig:
    """Two steps of DPO with AdamW, which has its state in the second."""
    ranks = engine["ranks"]
    return TrainConfig.model_validate(
        {
            "objective": {"name": "dpo"},
            "optimizer": {"name": "adamw", "learning_rate": 1e-6},
            "engine": {"kind": "deepspeed", **engine},
            "steps": 2,
            "batch_size": 4 * ranks,
            "micro_batch_size": 4,
            "overlong": "truncate_left",
        }
    )


def measured(folder: Path, config: TrainConfig, model: Path, rows: Path) -> tuple[int, float]:
    """Most bytes of tensors on any rank, and the seconds of the training itself."""
    launch(folder, "plan_rank", config, model, rows)
    figures = [json.loads(file.read_text()) for file in folder.glob("figures-*.json")]
    return max(f["live"] for f in figures), max(f["seconds"] for f in figures)


def launch(folder: Path, program: str, config: TrainConfig, model: Path, rows: Path) -> None:
    """Runs a rank program on a job in a new folder, where ranks leave their figures."""
    folder.mkdir()
    job = TrainJob(
        config=config,
        model=model,
        examples=rows,
        output=folder / "output",
        resume_out=folder / "states",
    )
    (folder / "job.json").write_text(job.model_dump_json())
    launch_ranks(
        f"tests.benchmarks.{program}",
        folder / "job.json",
        ranks=config.engine.ranks,
        logs=folder / "logs",
        environment={"PYTHONPATH": str(ROOT)},
        while_running=lambda: None,
    )


def study() -> dict[str, float]:
    """A whole study with ledger and recorded steps: bytes of its store and of this machine's cache,
    bytes sent to the store, against the plan's and over the model's weights."""
    with tempfile.TemporaryDirectory() as home, counted_store() as store:
        folder = Path(home)
        write_model(folder / "model", "10m")
        write_pairs(folder / "rows.jsonl", 40)
        planned = plan(folder, small_study(folder), store.variables)
        run(folder, store.variables)
        stored, held = sum(cost["stored"] for cost in planned), sum(store.held().values())
        weights = (folder / "model" / "model.safetensors").stat().st_size
        records = (folder / "home" / "cache" / RECORDS).rglob("*.safetensors")
        return {
            "store_plan_error": abs(stored / held - 1),
            "store_bytes_over_weights": held / weights,
            "upload_bytes_over_weights": store.sent / weights,
            "records_bytes_over_weights": sum(file.stat().st_size for file in records) / weights,
        }


def study_160m() -> dict[str, float]:
    """The same study of 160M parameters on HH's rows, where every process may take `LIMIT` bytes:
    gigabytes of its processes together, above what is mapped from files, and the plan's."""
    limit = partial(resource.setrlimit, resource.RLIMIT_DATA, (LIMIT, LIMIT))
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        write_model(folder / "model", "160m")
        rows = Path(os.environ["DYNOLAB_TEST_DATA"], "data/probes/hh_helpful_probe_train.jsonl.gz")
        content = small_study(folder)
        content["data"] |= {"path": str(rows), "format": "probe_file"}
        content["preference"]["overlong"] = "truncate_left"
        content["ledger"] |= {"heldout_answers": 1, "batch_tokens": 2048, "disk_bytes": 2**34}
        planned = plan(folder, content, {})
        most = peak_above_start(lambda: run(folder, {}, before=limit), own_of_children, 0.5)
        whole = max(cost["ranks"] * cost["rank_bytes"] + cost["host_bytes"] for cost in planned)
        return {"study_160m_gb": most / 1e9, "study_160m_planned_gb": whole / 1e9}


LIMIT = 20 * 10**9


def started() -> dict[str, float]:
    """Main memory that rank 0 takes while it loads a model and starts, over the model's weights."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        write_model(folder / "model", "160m")
        pythia(vocab_size=64, num_hidden_layers=1).save_pretrained(folder / "small")
        config = training({"ranks": 2, "zero_stage": 0})
        launch(folder / "job", "start_rank", config, folder / "model", folder / "rows.jsonl")
        figures = json.loads((folder / "job" / "figures-0.json").read_text())
        return {"host_copies_rank0": figures["copies"]}


def small_study(folder: Path) -> dict[str, Any]:
    """Preference training of a finetuned model, with all that a study measures made small."""
    engine = {"kind": "deepspeed", "ranks": 2, "zero_stage": 2}
    return {
        "name": "planned",
        "data": {
            "source": "file",
            "path": str(folder / "rows.jsonl"),
            "heldout_rows": 4,
            "probe_pairs": 2,
        },
        "base": {"source": str(folder / "model")},
        "sft": None,
        "preference": {
            "objective": {"name": "dpo"},
            "optimizer": {"name": "rmsprop", "learning_rate": 1e-6},
            "engine": engine,
            "steps": 4,
            "batch_size": 4,
            "micro_batch_size": 2,
            "probe_every": 2,
            "checkpoint_every": 2,
            "record_steps": [0, 3],
        },
        "audit": {"pairs": 2, "heldout_pairs": 1},
        "probe": {"answers": 1, "answer_tokens": 4},
        "forces": {"pairs": 1},
        "kernel": None,
        "squeezing": None,
        "ledger": {"pairs": 1, "answers": 1},
    }


def plan(
    folder: Path, content: dict[str, Any], variables: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Writes a study's file; what its stages will cost."""
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    return [stage["cost"] for stage in run(folder, variables, "--plan")["stages"] if stage["cost"]]


def run(
    folder: Path,
    variables: Mapping[str, str],
    *options: str,
    before: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """The command on the study in a folder; the JSON that it ends with."""
    command = [sys.executable, "-m", "dynolab", "study", str(folder / "study.yaml"), "--json"]
    done = subprocess.run(
        [*command, *options],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables | {"DYNOLAB_HOME": str(folder / "home")},
        preexec_fn=before,
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
