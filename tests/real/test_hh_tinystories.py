"""The study on the paper's own probe file and a real Llama: results on S3, runs in MLflow."""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tokenizers import Tokenizer

from dynolab.store import Store
from tests.runtime.conftest import MlflowServer

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy/studies/hh_tinystories.yaml"
STAGES = {
    "data",
    "base",
    "sft",
    "audit",
    "preference",
    "foresight",
    "probe",
    "sft-forces",
    "preference-forces",
    "kernel",
    "squeezing",
    "ledger",
    "report",
}
KINDS = {
    "chosen",
    "chosen_initial",
    "chosen_selfr",
    "chosen_gptsemantic",
    "chosen_gptformat",
    "rejected",
    "reject_gptsemantic",
    "reject_gptformat",
    "irr_train",
    "irr_test",
    "irr_hum",
    "random_permute",
    "random_nonhum",
}
CONTEXT = 512
SIDES = ("chosen", "rejected")
NOT_SHORT = {"sft-forces", "kernel", "squeezing"}
"""Stages that `SHORT` leaves out."""

SHORT = (
    "data.rows=60",
    "data.heldout_rows=10",
    "data.probe_pairs=3",
    "sft.steps=4",
    "sft.probe_every=4",
    "sft.checkpoint_every=2",
    "sft.record_steps=[]",
    "preference.steps=2",
    "preference.probe_every=2",
    "preference.checkpoint_every=0",
    "sft.warmup_steps=0",
    "preference.warmup_steps=0",
    "preference.record_steps=[1]",
    "forces.pairs=1",
    "probe.answers=1",
    "probe.answer_tokens=4",
    "audit.pairs=4",
    "audit.heldout_pairs=2",
    "squeezing=null",
    "kernel=null",
    "ledger.pairs=1",
    "ledger.answers=1",
)

pytestmark = [
    pytest.mark.services,
    pytest.mark.ranks,
    pytest.mark.skipif(
        not os.environ.get("DYNOLAB_TEST_DATA"),
        reason="DYNOLAB_TEST_DATA names no folder with the real model and data",
    ),
]


@pytest.fixture
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@dataclass(frozen=True)
class Lab:
    """A home, a bucket and an MLflow server, and what one study leaves there."""

    home: Path
    bucket: str
    endpoint: str
    mlflow: str
    changes: tuple[str, ...] = ()

    @property
    def stages(self) -> set[str]:
        return STAGES - NOT_SHORT if self.changes else STAGES

    def study(self) -> str:
        changes = [word for change in self.changes for word in ("--set", change)]
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", "study", "--config", str(FILE), *changes],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=3000,
            env=os.environ
            | {
                "DYNOLAB_HOME": str(self.home),
                "DYNOLAB_STORE": f"s3://{self.bucket}/lab",
                "DYNOLAB_STORE_ENDPOINT": self.endpoint,
                "MLFLOW_TRACKING_URI": self.mlflow,
            },
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    def committed(self) -> dict[str, list[tuple[dict[str, Any], Path]]]:
        """By stage: manifest and verified local folder of each result on S3."""
        store = Store(
            f"s3://{self.bucket}/lab", cache=self.home / "downloaded", endpoint=self.endpoint
        )
        files = fsspec.filesystem("s3", endpoint_url=self.endpoint, skip_instance_cache=True)
        results: dict[str, list[tuple[dict[str, Any], Path]]] = {}
        for path in files.find(f"{self.bucket}/lab/stages"):
            *_, stage, key, name = path.split("/")
            if name == "COMMITTED":
                place = store.place(stage, key)
                result = place.committed()
                assert result is not None
                folder = store.folder(place.address(result), result.manifest.digest)
                manifest = json.loads(result.manifest.to_bytes())
                results.setdefault(stage, []).append((manifest, folder))
        return results

    @cached_property
    def results(self) -> dict[str, tuple[dict[str, Any], Path]]:
        """Manifest and folder of the stages that a study runs once."""
        committed = self.committed()
        kinds = Counter(name.split("-")[-1] for name in self.stages)
        assert {stage: len(results) for stage, results in committed.items()} == kinds
        return {stage: results[0] for stage, results in committed.items()}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def dropped(trained: set[int]) -> int:
    """Pairs of which a side and its end exceed the context, by the tokenizer's file alone."""
    data = Path(os.environ["DYNOLAB_TEST_DATA"])
    tokenizer = Tokenizer.from_file(str(data / "models/tinystories-656k/tokenizer.json"))

    with gzip.open(data / "data/probes/hh_helpful_probe_train.jsonl.gz", "rt") as file:
        records = [json.loads(line) for line in file]
    return sum(
        max(len(tokenizer.encode(record["prompt"] + record[side])) for side in SIDES) + 1 > CONTEXT
        for number, record in enumerate(records)
        if number in trained
    )


def check_store(lab: Lab) -> None:
    trained = lines(lab.results["data"][1] / "train.jsonl")
    expected = dropped({int(row["id"].removeprefix("row-")) for row in trained})
    assert 0 < expected < len(trained)
    for stage in ("sft", "preference"):
        manifest, folder = lab.results[stage]
        assert manifest["metrics"]["data/rows_dropped"] == expected
        assert manifest["metrics"]["data/rows_kept"] == len(trained) - expected
        assert (manifest["world_size"], manifest["zero_stage"]) == (2, 2)
        scores = lines(folder / "probes.jsonl")
        assert {score["kind"] for score in scores} == KINDS
        assert all(math.isfinite(score["logp"]) for score in scores)
        assert all("argmax_logp" in score for score in scores if score["kind"] == "chosen")


def check_model(lab: Lab) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = lab.results["preference"][1] / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer("\n\nHuman: Hi (it’s me).\n\nAssistant:", return_tensors="pt")
    assert tokenizer.unk_token_id in text["input_ids"]  # as the model was trained: not left out
    assert model(text["input_ids"]).logits.isfinite().all()


def chosen_path(lab: Lab, stage: str) -> list[float]:
    """Mean log-probability of the training pairs' chosen answers, probe by probe."""
    steps: dict[int, list[float]] = {}
    for score in lines(lab.results[stage][1] / "probes.jsonl"):
        if (score["kind"], score["split"]) == ("chosen", "train"):
            steps.setdefault(score["step"], []).append(score["logp"])
    return [math.fsum(steps[step]) / len(steps[step]) for step in sorted(steps)]


def check_forces(lab: Lab) -> None:
    for _, folder in lab.committed()["forces"]:
        for replay in json.loads((folder / "replay.json").read_text()):
            assert replay["closure_error"] < 1e-3
        pushes = json.loads((folder / "token_map.json").read_text())
        # The tokens of the prompt's last colon depend on what follows it.
        assert "".join(pushes["chosen_tokens"]).removeprefix(":").startswith(" ")
        kinds = {row["kind"] for row in lines(folder / "forces.jsonl")}
        assert {"chosen", "argmax"} <= kinds <= KINDS | {"argmax"}


def check_mlflow(lab: Lab) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(lab.mlflow)
    experiments = [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(experiments, max_results=1000)
    children = {run.info.run_name.split(" / ")[-1]: run for run in runs}
    children.pop("hh-tinystories")
    assert set(children) == lab.stages
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(run.data.metrics for run in children.values())
    assert {"probe/chosen_gptsemantic/logp", "squeeze/gap", "train/loss"} <= set(
        children["sft"].data.metrics
    )
    assert "force/chosen/predicted" in children["preference-forces"].data.metrics


def check_all(lab: Lab) -> None:
    lab.study()
    check_store(lab)
    check_model(lab)
    check_forces(lab)
    folder = lab.results["report"][1]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["verdicts"] and summary["metrics"]
    assert "longer than the model’s context" in (folder / "report.html").read_text()
    check_mlflow(lab)


@pytest.mark.study
def test_a_few_steps(
    tmp_path: Path, s3_bucket: str, s3_server: str, mlflow_server: MlflowServer
) -> None:
    lab = Lab(tmp_path / "home", s3_bucket, s3_server, mlflow_server.uri, SHORT)
    check_all(lab)
    sft = chosen_path(lab, "sft")
    assert sft[-1] > sft[0]


@pytest.mark.study
@pytest.mark.timeout(3600)
def test_the_whole_study(
    tmp_path: Path, s3_bucket: str, s3_server: str, mlflow_server: MlflowServer
) -> None:
    lab = Lab(tmp_path / "home", s3_bucket, s3_server, mlflow_server.uri)
    check_all(lab)
    sft = chosen_path(lab, "sft")
    assert sft[-1] - sft[0] > 30  # of about 400 nats
    assert sft == sorted(sft)
    assert f"{len(STAGES)} stages, of which {len(STAGES)} cached" in lab.study()
