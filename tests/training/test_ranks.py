"""DeepSpeed ranks give the plain engine's numbers, and resume to the bit, at every ZeRO stage."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dynolab.data.batches import collate
from dynolab.data.rows import read_rows
from dynolab.forces import PolicyFunction, force_map, one_step, split_step
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.functions import ALLOWED
from dynolab.objectives import build_objective
from dynolab.results.study import OTHER_RANKS, ProbeScore
from dynolab.store import Manifest, Store
from dynolab.training.job import TrainJob
from dynolab.training.step_record import SECOND_MOMENT_AFTER
from models.language import load_language_model
from tasks.runtime.launch.launcher import launch_ranks
from tests.training.small import (
    apart,
    distance,
    group_settings,
    logged,
    make_files,
    make_job,
    metrics,
    run_small,
    settings,
    state,
    step_record,
    summary,
)

pytestmark = pytest.mark.ranks

BF16, STILL = "bf16", "bf16-still"
RECORDED = [0, 1, 3]
CASES = {
    **{f"zero{stage}": {"zero_stage": stage} for stage in (0, 1, 2, 3)},
    BF16: {"zero_stage": 1, "dtype": "bf16"},
    "bf16-zero3": {"zero_stage": 3, "dtype": "bf16"},
    "zero3-parts": {"zero_stage": 3},
    "zero2-offloaded": {"zero_stage": 2, "offload": True},
    "zero3-offloaded": {"zero_stage": 3, "offload": True},
    "zero3-checkpointed": {"zero_stage": 3, "checkpoint_activations": True},
}
AT_3 = "resume/step-00000003"
ELSEWHERE = {
    **{f"zero{stage}": f"plain/{AT_3}" for stage in (0, 1, 2, 3)},
    "bf16-zero3": f"bf16/whole/{AT_3}",
}
"""Cases that also go on from a state of another number of ranks, or of another ZeRO stage."""
LOGITS_BYTES = {"zero3-parts": 2_000}  # a dozen tokens: the ranks' micro-batches need several parts
FEW_TOKENS = 24  # of a probe's forward: the ranks' shares take unlike numbers of them
MOMENTUM = {"name": "sgd", "learning_rate": 1e-2, "momentum": 0.9}  # state without a step counter
# Groups that are left out leave ranks with unlike numbers of examples.
SAMPLED = {
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
    "micro_batch_size": 1,
    "record_steps": [3],
}
GROUPS = {
    "groups-zero2": (2, group_settings(**SAMPLED)),
    "groups-zero3": (
        3,
        group_settings(
            **SAMPLED,
            objective={
                "name": "simko",
                "share": 0.2,
                "kl": 0.05,
                "advantage_rule": {"name": "nthr"},
            },
        ),
    ),
    "online-pairs-zero1": (1, group_settings(**SAMPLED, objective={"name": "dpo"})),
    "online-sppo-zero2": (
        2,
        group_settings(**SAMPLED, objective={"name": "sppo", "beta": 0.1, "labels": "soft"}),
    ),
    **{
        f"adapters-zero{stage}": (stage, group_settings(**SAMPLED, lora={"rank": 2}))
        for stage in (2, 3)
    },
}
ALARMED = "alarmed-zero2"
# Where a weight's gradient cancels, rounding of the dose has the sign of Adam's step, which a large
# epsilon keeps short.
DESIGNED = settings(
    objective={"name": "dpo", "designed_dose": {"sample": 5}},
    optimizer={"name": "adamw", "learning_rate": 1e-4, "epsilon": 1e-4},
    record_steps=[3],
)
SQUEEZING = {
    "optimizer": {"name": "sgd", "learning_rate": 1.0},
    "clip_norm": 10.0,
    "warmup_steps": 0,
    "probe_every": 4,
    "alarm": {"rise": 1.0},
}
BEST = {"metric": "probe/rejected/logp", "largest": False}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_files(folder)
    run_small(folder, folder / "plain", settings())
    cases = {
        name: settings(
            engine={"kind": "deepspeed", "ranks": 2, **engine},
            record_steps=RECORDED,
        ).model_dump(mode="json")
        for name, engine in CASES.items()
    }
    changes = {"optimizer": MOMENTUM, "probe_batch_tokens": FEW_TOKENS}
    cases |= {f"momentum-{name}": cases[name] | changes for name in ("zero2", "zero3")}
    cases[ALARMED] = cases["zero2"] | SQUEEZING
    cases[STILL] = cases[BF16] | {"optimizer": {"name": "sgd", "learning_rate": 1e-12}}
    cases |= {f"best-{name}": cases[name] | {"best": BEST} for name in ("zero3", BF16)}
    designed = {f"designed-zero{stage}": (stage, DESIGNED) for stage in (0, 2)}
    for name, (stage, config) in (GROUPS | designed).items():
        engine = {"kind": "deepspeed", "ranks": 2, "zero_stage": stage}
        cases[name] = config.model_dump(mode="json") | {"engine": engine}
    file = folder / "job.json"
    job = {
        "inputs": str(folder),
        "cases": cases,
        "logits_bytes": LOGITS_BYTES,
        "elsewhere": ELSEWHERE,
    }
    file.write_text(json.dumps(job))
    launch_ranks(
        "tests.training.zero_stages",
        file,
        ranks=2,
        logs=folder / "logs",
        environment={"PYTHONPATH": str(ROOT), ALLOWED: "tests.training.rewards"},
        while_running=lambda: None,
    )
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_one_host_listen_on_loopback_alone(runs: Path, rank: int) -> None:
    listening = json.loads((runs / f"listening-{rank}.json").read_text())
    assert listening, "gloo's connections between the ranks"
    assert {address.rpartition(":")[0] for address in listening} == {"127.0.0.1"}


def job_of(runs: Path, name: str, which: str) -> TrainJob:
    return make_job(runs, runs / name / which, settings())


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
def test_every_rank_keeps_a_shard_of_its_own_and_none_holds_code(
    runs: Path, name: str, tmp_path: Path
) -> None:
    place = Store(f"file://{tmp_path}/store", cache=tmp_path / "cache").place("sft", "ab" * 32)
    written = state(job_of(runs, name, "whole"), 3)
    place.commit_resume(3, written, Manifest(stage="sft", key="ab" * 32, version=1, world_size=2))
    _, kept = place.newest_resume() or pytest.fail("no state was kept")
    files = Manifest.model_validate_json((kept / "manifest.json").read_bytes()).files
    shards = {f"engine/shard-{rank}.safetensors" for rank in range(2)}
    assert shards | {f"random-{rank}.safetensors" for rank in range(2)} <= files.keys()
    assert {Path(path).suffix for path in files} == {".safetensors", ".json", ".jsonl"}
    first, second = (files[path] for path in sorted(shards))
    assert first.sha256 != second.sha256
    assert first.size == pytest.approx(second.size, rel=0.1)  # each holds its half


@pytest.mark.parametrize("name", [*CASES, "momentum-zero2", "momentum-zero3"])
def test_a_resumed_run_ends_with_the_same_bits(runs: Path, name: str) -> None:
    whole, resumed = job_of(runs, name, "whole"), job_of(runs, name, "resumed")
    assert apart(whole, resumed) == 0.0
    assert (whole.output / "probes.jsonl").read_text() == (
        resumed.output / "probes.jsonl"
    ).read_text()
    assert [line.step for line in logged(resumed)] == [line.step for line in logged(whole)]
    for step in RECORDED:
        record, again = step_record(whole, step), step_record(resumed, step)
        assert record.facts == again.facts
        assert distance(record.after, again.after) == 0.0
        assert record.state.keys() == again.state.keys()
        for parameter, tensors in record.state.items():
            assert distance(tensors, again.state[parameter]) == 0.0


def test_an_alarm_ends_all_ranks_at_one_step_resumed_or_not(runs: Path) -> None:
    for which in ("whole", "resumed"):
        job = job_of(runs, ALARMED, which)
        ring = summary(job).alarm
        assert ring is not None
        assert summary(job).steps == ring.step == 4
        assert [line.step for line in logged(job)] == [0, 1, 2, 3, 4, 4]
    whole, resumed = (job_of(runs, ALARMED, which) for which in ("whole", "resumed"))
    assert apart(whole, resumed) == 0.0


@pytest.mark.parametrize("name", ["zero3", BF16])
def test_the_best_probe_s_model_is_gathered_from_all_ranks(runs: Path, name: str) -> None:
    whole, resumed = (job_of(runs, f"best-{name}", which) for which in ("whole", "resumed"))
    assert summary(whole) == summary(resumed)
    best = summary(whole).best
    assert best is not None
    assert best.step == 6  # DPO pushes rejected answers down to the end
    assert apart(whole, resumed) == 0.0
    assert apart(whole, job_of(runs, name, "whole")) == 0.0


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_state_of_other_ranks_is_read_to_the_bit(runs: Path, name: str) -> None:
    """From one rank to two, from two to one, and from one ZeRO stage to another."""
    other = make_job(runs, (runs / ELSEWHERE[name]).parents[1], settings())
    pairs = [(other, job_of(runs, name, "elsewhere"))]
    if other.output.parent.name == "plain":
        two = job_of(runs, name, "whole")
        one = run_small(runs, runs / name / "on-one", settings(), state(two, 3))
        pairs.append((two, one))
    for before, after in pairs:
        expected, got = step_record(before, 3), step_record(after, 3)
        assert distance(expected.before, got.before) == 0.0
        for parameter, tensors in expected.state.items():
            assert all(
                torch.equal(tensor, got.state[parameter][key])
                for key, tensor in tensors.items()
                if key != SECOND_MOMENT_AFTER
            )
        # Three steps of up to 1e-3: where a squared gradient is small, Adam enlarges rounding.
        assert apart(before, after) < (2e-5 if name != "bf16-zero3" else 2e-3)
        (resumed,) = (line for line in logged(after) if OTHER_RANKS in line.metrics)
        assert resumed.step == 3


@pytest.mark.parametrize("name", [name for name in CASES if BF16 not in name])
def test_every_zero_stage_gives_the_plain_numbers(runs: Path, name: str) -> None:
    plain = make_job(runs, runs / "plain", settings())
    ours = job_of(runs, name, "whole")
    # Adam divides by the root of a squared gradient: rounding shows at a few 1e-6 of a step.
    assert apart(plain, ours) < 2e-5
    for expected, got in zip(metrics(plain), metrics(ours), strict=True):
        assert expected.keys() == got.keys()
        # Accuracy counts the signs of margins, which at first are zero but for rounding.
        for key in expected.keys() - {"train/examples_per_s", "probe/seconds", "train/accuracy"}:
            assert got[key] == pytest.approx(expected[key], rel=2e-4, abs=2e-5), key


def test_ranks_share_the_probes_under_zero_3_too(runs: Path) -> None:
    """Weights differ by rounding between stages, but at the start they are the same."""
    scores = []
    for name in ("zero2", "zero3"):
        output = job_of(runs, f"momentum-{name}", "whole").output
        scores.append(list(read_rows(output / "probes.jsonl", ProbeScore)))
    for expected, got in zip(*scores, strict=True):
        assert (got.step, got.pair_id, got.kind) == (expected.step, expected.pair_id, expected.kind)
        assert got.logp == pytest.approx(expected.logp, abs=1e-6 if got.step == 0 else 1e-3)


@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_the_same_on_ranks_and_resume_to_the_bit(
    runs: Path, tmp_path: Path, name: str
) -> None:
    _, config = GROUPS[name]
    alone = run_small(runs, tmp_path, config)
    whole, resumed = job_of(runs, name, "whole"), job_of(runs, name, "resumed")
    assert apart(whole, resumed) == 0.0
    assert apart(alone, whole) < 1e-5
    drawn = [
        [
            (example.id, sequence)
            for example in step_record(job, 3).examples
            for sequence in example.named().values()
        ]
        for job in (alone, whole, resumed)
    ]
    assert drawn[0] == drawn[1] == drawn[2]
    for expected, got in zip(metrics(alone), metrics(whole), strict=True):
        assert expected.keys() == got.keys()
        free = {"train/examples_per_s"}
        if abs(expected.get("train/margin", 1.0)) < 1e-5:
            free.add("train/accuracy")  # the policy is the reference yet: rounding has the sign
        for key in expected.keys() - free:
            assert got[key] == pytest.approx(expected[key], rel=1e-3, abs=1e-4), key


@pytest.mark.parametrize("stage", [0, 2])
def test_ranks_design_one_dose_and_resume_to_the_bit(
    runs: Path, tmp_path: Path, stage: int
) -> None:
    alone = run_small(runs, tmp_path, DESIGNED)
    whole, resumed = (
        job_of(runs, f"designed-zero{stage}", which) for which in ("whole", "resumed")
    )
    assert apart(whole, resumed) == 0.0
    assert apart(alone, whole) < 1e-5
    # Differences of log-probabilities round more than the log-probabilities themselves.
    used, ours = (
        [line["train/dose"] for line in metrics(job) if "train/dose" in line]
        for job in (alone, whole)
    )
    assert ours == pytest.approx(used, abs=5e-3)
    assert min(used) < 1
    (dose,) = {
        dose
        for example in step_record(whole, 3).examples
        for dose in example.model_dump()["rejected_dose"]
    }
    assert dose == pytest.approx(ours[3], rel=1e-6)


def test_records_hold_whole_tensors_at_every_stage(runs: Path) -> None:
    plain = step_record(make_job(runs, runs / "plain", settings()), 3)
    for name in CASES.keys() - {BF16, "bf16-zero3"}:
        record = step_record(job_of(runs, name, "whole"), 3)
        assert record.state.keys() == plain.state.keys()
        for parameter, tensors in plain.state.items():
            assert record.state[parameter].keys() == tensors.keys()
            for key, tensor in tensors.items():
                assert record.state[parameter][key].shape == tensor.shape
                error = (record.state[parameter][key] - tensor).norm() / tensor.norm()
                assert error < 1e-3, (name, parameter, key)


def test_a_zero2_record_has_the_forces_of_one_process(runs: Path) -> None:
    """Weights and moments differ by float32's rounding, and so by little more do the forces.

    Adam's scale is the inverse root of a squared gradient, which rounding moves most where the
    gradient is next to nothing; 1e-3 of the map's norm is the bound of the records' moments.
    """
    forces = []
    for folder in ("plain", "zero2/whole"):
        record = step_record(make_job(runs, runs / folder, settings()), 3)
        policy = PolicyFunction(load_language_model(runs / "model"))
        update = split_step(record, policy).update
        observed = [example.chosen for example in record.examples[:3]]
        objective = build_objective(record.facts.objective)
        forces.append(
            (
                force_map(policy, observed, record.examples, objective, at=record.before).force,
                force_map(
                    policy, observed, record.examples, objective, update=update, at=record.before
                ).force,
                one_step(
                    policy, record.before, record.after, collate(observed, 0)
                ).predicted.numpy(),
            )
        )
    for one, other in zip(*forces, strict=True):
        assert np.linalg.norm(one - other) < 1e-3 * np.linalg.norm(one)


def test_bf16_follows_fp32_at_its_own_precision(runs: Path) -> None:
    bf16, fp32 = job_of(runs, BF16, "whole"), job_of(runs, "zero1", "whole")
    assert 0 < apart(bf16, fp32) < 5e-3


@pytest.mark.parametrize("name", [BF16, "bf16-zero3"])
def test_the_account_of_bf16_steps_closes(runs: Path, name: str) -> None:
    first, second = (step_record(job_of(runs, name, "whole"), step) for step in (0, 1))
    policy = PolicyFunction(load_language_model(runs / "model"))
    ledger = Ledger(policy, [Functional.mean("", [row.chosen]) for row in first.examples])
    tables = LedgerTables([row.id for row in first.examples])
    for record in (second, first):
        tables.add(ledger.enter(record))
    assert tables.summary().closure < 1e-5
    assert 1e-4 < tables.summary().rounding_share < 0.05


def test_bf16_starts_from_the_unrounded_weights_at_its_own_reference(runs: Path) -> None:
    still = job_of(runs, STILL, "whole")
    model = PolicyFunction(load_language_model(runs / "model")).weights
    ended = PolicyFunction(load_language_model(still.output / "model")).weights
    assert distance(ended, model) < 1e-8  # bf16 would round by 1e-3
    margins = [line["train/margin"] for line in metrics(still) if "train/margin" in line]
    assert len(margins) == 6
    first, second = margins[:3], margins[3:]  # two passes over the rows
    assert first == [0.0, 0.0, 0.0]
    assert max(map(abs, second)) < 1e-3  # an fp32 reference is 1e-2 away
