"""What a resume state holds, whom it belongs to, and what is said where it cannot be written."""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.training import resume
from dynolab.training.job import TrainJob
from dynolab.training.resume import FREE, load_state, save_state
from tests.training.small import make_files, make_job, settings


class Part:
    """Stands for an engine and for a source: keeps one file, and notes what it is asked."""

    def __init__(self) -> None:
        self.loaded: list[tuple[Any, ...]] = []

    def save(self, *told: Any) -> None:
        folder: Path = told[-1]
        folder.mkdir(parents=True)
        (folder / "part").write_text(json.dumps(told[:-1]))

    def load(self, *told: Any) -> None:
        self.loaded.append((*told[:-1], (told[-1] / "part").read_text(), told[-1].name))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


def job_of(inputs: Path, folder: Path, **changes: Any) -> TrainJob:
    return make_job(inputs, folder, settings(**changes))


@pytest.fixture
def job(inputs: Path, tmp_path: Path) -> TrainJob:
    job = job_of(inputs, tmp_path / "first")
    (job.output / "forces/step-00000001").mkdir(parents=True)
    (job.output / "forces/step-00000001/step.json").write_text("record")
    (job.output / "metrics.jsonl").write_text("metrics\n")
    (job.output / "summary.json").write_text("not carried")
    return job


@pytest.fixture
def state(job: TrainJob) -> Path:
    save_state(Part(), Part(), 3, job)
    return job.resume_out / "step-00000003"


def facts(state: Path, **changes: Any) -> dict[str, Any]:
    """A state's facts, with some of them written anew."""
    path = state / "state.json"
    known = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(known))
    return known


def test_a_state_holds_its_facts_its_parts_and_the_results_so_far(
    state: Path, job: TrainJob, inputs: Path
) -> None:
    model = inputs / "model"
    assert facts(state) == {
        "step": 3,
        "ranks": 1,
        "threads": torch.get_num_threads(),
        "settings": job.config.model_dump(mode="json", exclude=FREE),
        "inputs": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (
                inputs / "train.jsonl",
                model / "config.json",
                model / "model.safetensors",
            )
        },
    }
    assert {path.name for path in state.iterdir()} == {
        "engine",
        "source",
        "output",
        "state.json",
        "random-0.json",
        "random-0.safetensors",
    }
    assert (state / "source/part").read_text() == "[3]"
    carried = {path.relative_to(state / "output") for path in (state / "output").rglob("*.json*")}
    record = Path("forces/step-00000001/step.json")
    assert carried == {Path("metrics.jsonl"), record}
    # What is written on is copied; a record never is, and stands on the disk once.
    assert (state / "output" / record).stat().st_nlink == 2
    assert (state / "output/metrics.jsonl").stat().st_nlink == 1
    assert [path.name for path in job.resume_out.iterdir()] == ["step-00000003"]


def test_records_are_copied_where_the_disk_has_no_links(
    job: TrainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr("os.link", refused)
    save_state(Part(), Part(), 3, job)
    copied = job.resume_out / "step-00000003/output/forces/step-00000001/step.json"
    assert copied.read_text() == "record" and copied.stat().st_nlink == 1


def test_loading_gives_the_parts_their_files_and_the_results_so_far(
    state: Path, inputs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = job_of(inputs, tmp_path / "later")
    (later.output).mkdir()
    engine, source = Part(), Part()
    assert load_state(engine, source, state, later) == 3
    assert engine.loaded == [("[]", "engine")] and source.loaded == [(3, "[3]", "source")]
    assert (later.output / "metrics.jsonl").read_text() == "metrics\n"
    assert (later.output / "forces/step-00000001/step.json").read_text() == "record"
    assert not caplog.records
    facts(state, threads=torch.get_num_threads() + 1)
    load_state(Part(), Part(), state, later)
    assert f"the one before did on {torch.get_num_threads() + 1}" in caplog.text


@pytest.mark.parametrize(
    ("changes", "field", "value", "before"),
    [
        ({"seed": 7}, "seed", 7, "0"),
        ({"objective": {"name": "dpo", "beta": 0.3}}, "objective.beta", 0.3, "0.1"),
        # A name before the settings that only one of the two has.
        ({"objective": {"name": "simpo"}}, "objective.beta", 2.0, "0.1"),
        ({"objective": {"name": "ipo"}}, "objective.name", "ipo", "'dpo'"),
        ({"clip_norm": 0.25}, "clip_norm", 0.25, "0.5"),
    ],
)
def test_the_state_of_another_training_is_refused_by_its_setting(
    changes: dict[str, Any],
    field: str,
    value: object,
    before: str,
    state: Path,
    inputs: Path,
    tmp_path: Path,
) -> None:
    engine = Part()
    with pytest.raises(ConfigError, match="belongs to a training with") as refused:
        load_state(engine, Part(), state, job_of(inputs, tmp_path / "other", **changes))
    assert (refused.value.field, refused.value.value) == (field, value)
    assert f"with {before};" in str(refused.value)
    assert engine.loaded == []


def test_settings_that_change_no_update_may_change(
    state: Path, inputs: Path, tmp_path: Path
) -> None:
    changes = {"steps": 9, "probe_every": 1, "checkpoint_every": 1, "record_steps": [4]}
    assert load_state(Part(), Part(), state, job_of(inputs, tmp_path / "on", **changes)) == 3


def test_the_state_of_other_inputs_or_ranks_or_versions_is_refused(
    state: Path, job: TrainJob
) -> None:
    known = facts(state)
    digests = known["inputs"]
    facts(state, inputs=digests | {"train.jsonl": "0" * 64})
    with pytest.raises(ConfigError, match="belongs to a training with '0000") as refused:
        load_state(Part(), Part(), state, job)
    assert refused.value.field == "input train.jsonl"
    assert refused.value.value == digests["train.jsonl"]
    facts(state, inputs=digests, ranks=2)
    with pytest.raises(ConfigError, match=r"engine\.ranks = 1: .*shards of 2 ranks"):
        load_state(Part(), Part(), state, job)
    for spoilt in ("{}", "", json.dumps(known | {"more": 1})):
        (state / "state.json").write_text(spoilt)
        with pytest.raises(ConfigError, match="holds no resume state") as refused:
            load_state(Part(), Part(), state, job)
        assert (refused.value.field, refused.value.value) == ("resume_from", str(state))
    (state / "state.json").unlink()
    with pytest.raises(ConfigError, match="holds no resume state"):
        load_state(Part(), Part(), state, job)


def test_a_disk_without_room_costs_the_state_and_not_the_training(
    job: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(Part):
        def save(self, *told: Any) -> None:
            super().save(*told)
            raise OSError(28, "No space left on device")

    save_state(Full(), Part(), 3, job)
    assert list(job.resume_out.iterdir()) == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "training goes on without a resume state of step 3: "
        "OSError: [Errno 28] No space left on device"
    )


def test_what_an_earlier_attempt_left_is_no_part_of_a_state(job: TrainJob) -> None:
    left = job.resume_out / ".step-00000003.unfinished/engine"
    left.mkdir(parents=True)
    (left / "shard-7").write_text("of another world size")
    save_state(Part(), Part(), 3, job)
    assert [path.name for path in (job.resume_out / "step-00000003/engine").iterdir()] == ["part"]


def test_free_settings_are_settings() -> None:
    assert set(type(settings()).model_fields) >= FREE
    assert resume.CARRIED == ("metrics.jsonl", "probes.jsonl", "forces", "best")
