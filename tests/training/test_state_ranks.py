"""A resume state of many ranks: who writes what, when it counts, and whom it belongs to."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.training import resume
from dynolab.training.job import TrainJob
from dynolab.training.resume import (
    StateFacts,
    _load_random,
    _save_random,
    _trouble_seeing,
    load_state,
    save_state,
)
from tests.training.ranks_played import play
from tests.training.small import make_files, make_job, settings
from tests.training.test_state_files import Part


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    make_files(folder)
    return folder


@pytest.fixture
def job(inputs: Path, tmp_path: Path) -> TrainJob:
    job = make_job(inputs, tmp_path / "run", settings())
    job.output.mkdir()
    (job.output / "metrics.jsonl").write_text("metrics\n")
    (job.output / "probes.jsonl").write_text("probes\n")
    return job


def files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    return record.getMessage()


def test_the_facts_are_the_first_rank_s_one_to_a_line(job: TrainJob) -> None:
    save_state(Part(), Part(), 3, job)
    text = (job.resume_out / "step-00000003" / "state.json").read_text()
    assert text == StateFacts.of(job, 3).model_dump_json(indent=1)


def test_the_folder_of_states_need_not_be_there(job: TrainJob) -> None:
    job = job.model_copy(update={"resume_out": job.resume_out / "of" / "states"})
    save_state(Part(), Part(), 3, job)
    assert (job.resume_out / "step-00000003" / "state.json").exists()


def test_a_folder_that_cannot_be_made_costs_the_state_and_not_the_training(
    job: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    (job.resume_out / "file").write_text("no folder")
    save_state(Part(), Part(), 3, job.model_copy(update={"resume_out": job.resume_out / "file"}))
    told = warning(caplog)
    assert told.startswith("training goes on without a resume state of step 3: NotADirectoryError:")
    assert files(job.resume_out) == ["file"]


def test_another_rank_writes_its_part_beside_the_first_one_s_and_commits_nothing(
    job: TrainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, 1, 2)
    unfinished = job.resume_out / ".step-00000003.unfinished"
    unfinished.mkdir()
    (unfinished / "state.json").write_text("of rank 0")
    save_state(Part(), Part(), 3, job)
    assert files(job.resume_out) == [
        f"{unfinished.name}/{name}"
        for name in (
            "engine/part",
            "random-1.json",
            "random-1.safetensors",
            "source/part",
            "state.json",
        )
    ]
    assert (unfinished / "state.json").read_text() == "of rank 0"


def test_another_rank_s_trouble_costs_the_state(
    job: TrainJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gather(mine: Any) -> list[Any]:
        return [mine, mine if isinstance(mine, dict) else "OSError: disk full"]

    play(monkeypatch, 0, 2, gather)
    save_state(Part(), Part(), 3, job)
    assert warning(caplog).endswith("without a resume state of step 3: OSError: disk full")
    assert list(job.resume_out.iterdir()) == []


def test_a_part_of_another_rank_that_this_host_never_sees_costs_the_state(
    job: TrainJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def gather(mine: Any) -> list[Any]:
        return [mine, {"engine/shard-1": 5} if isinstance(mine, dict) else None]

    play(monkeypatch, 0, 2, gather)
    monkeypatch.setattr(resume, "ARRIVE_SECONDS", 0.0)
    save_state(Part(), Part(), 3, job)
    assert warning(caplog).endswith(
        "engine/shard-1, written on another host, does not arrive on this one"
    )
    assert list(job.resume_out.iterdir()) == []


def test_an_empty_file_arrives_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert _trouble_seeing([{"empty": 0}], tmp_path) is None


def test_parts_are_looked_for_ten_times_a_second_as_long_as_they_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    monkeypatch.setattr(resume, "time", clock)
    trouble = _trouble_seeing([{"b": 2, "a": 1}], tmp_path)
    assert trouble == "a, written on another host, does not arrive on this one"
    assert set(pauses) == {0.1}
    assert sum(pauses) == pytest.approx(90, abs=0.2)


def test_another_rank_reads_its_own_part_and_leaves_the_results_to_the_first(
    job: TrainJob, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(Part(), Part(), 3, job)
    state = job.resume_out / "step-00000003"
    for suffix in (".json", ".safetensors"):
        (state / f"random-0{suffix}").rename(state / f"random-1{suffix}")
    # What belongs to another training is rank 0's to refuse: the others do not hash files.
    facts = json.loads((state / "state.json").read_text()) | {"inputs": {}}
    (state / "state.json").write_text(json.dumps(facts))
    play(monkeypatch, 1, 2, lambda mine: [None, mine])
    engine, source = Part(), Part()
    later = make_job(inputs, tmp_path / "later", settings())
    assert load_state(engine, source, state, later) == 3
    assert engine.loaded == [("[]", "engine")] and source.loaded == [(3, "[3]", "source")]
    assert not later.output.exists()


def test_the_results_so_far_replace_what_stands_in_their_place(
    job: TrainJob, inputs: Path, tmp_path: Path
) -> None:
    folder = job.output / "forces" / "step-00000001"
    folder.mkdir(parents=True)
    (folder / "step.json").write_text("record")
    save_state(Part(), Part(), 3, job)
    later = make_job(inputs, tmp_path / "some" / "later", settings())
    for _ in range(2):
        load_state(Part(), Part(), job.resume_out / "step-00000003", later)
        assert files(later.output) == files(job.output)
        (later.output / "metrics.jsonl").write_text("metrics\nof steps that are made again\n")
    load_state(Part(), Part(), job.resume_out / "step-00000003", later)
    assert (later.output / "metrics.jsonl").read_text() == "metrics\n"
    assert (later.output / "forces/step-00000001/step.json").read_text() == "record"


def test_a_state_that_knows_more_or_fewer_inputs_is_of_another_training(job: TrainJob) -> None:
    save_state(Part(), Part(), 3, job)
    state = job.resume_out / "step-00000003"
    known = StateFacts.of(job, 3)
    more = known.model_copy(update={"inputs": known.inputs | {"z.safetensors": "0" * 64}})
    (state / "state.json").write_text(more.model_dump_json())
    message = (
        rf"^input z\.safetensors = None: the resume state belongs to a training with '{'0' * 64}'; "
        "resume with that, or start anew$"
    )
    with pytest.raises(ConfigError, match=message):
        load_state(Part(), Part(), state, job)
    digests = dict(known.inputs)
    gone = digests.pop("train.jsonl")
    fewer = known.model_copy(update={"inputs": digests})
    (state / "state.json").write_text(fewer.model_dump_json())
    message = rf"^input train\.jsonl = '{gone}': the resume state belongs to a training with None;"
    with pytest.raises(ConfigError, match=message):
        load_state(Part(), Part(), state, job)


def test_the_first_setting_by_name_that_differs_is_named(
    job: TrainJob, inputs: Path, tmp_path: Path
) -> None:
    save_state(Part(), Part(), 3, job)
    changes = {"seed": 7, "clip_norm": 0.25, "batch_size": 4}
    other = make_job(inputs, tmp_path / "other", settings(**changes))
    message = (
        "^batch_size = 4: the resume state belongs to a training with 8; resume with that, or "
        "start anew$"
    )
    with pytest.raises(ConfigError, match=message):
        load_state(Part(), Part(), job.resume_out / "step-00000003", other)


def test_a_state_of_more_ranks_is_refused_with_what_else_can_be_done(job: TrainJob) -> None:
    save_state(Part(), Part(), 3, job)
    state = job.resume_out / "step-00000003"
    of_two = StateFacts.of(job, 3).model_copy(update={"ranks": 2})
    (state / "state.json").write_text(of_two.model_dump_json())
    message = (
        r"^engine\.ranks = 1: the resume state holds the shards of 2 ranks; resume with as many, "
        r"or train on from a finished training's model/ with any number$"
    )
    with pytest.raises(ConfigError, match=message):
        load_state(Part(), Part(), state, job)


def test_other_threads_are_told_of_with_both_numbers(
    job: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    save_state(Part(), Part(), 3, job)
    state, threads = job.resume_out / "step-00000003", torch.get_num_threads()
    with_more = StateFacts.of(job, 3).model_copy(update={"threads": threads + 1})
    (state / "state.json").write_text(with_more.model_dump_json())
    load_state(Part(), Part(), state, job)
    assert warning(caplog) == (
        f"this run computes on {threads} threads and the one before did on {threads + 1}: "
        "sums may round otherwise, so the last bits may differ"
    )


def test_an_accelerator_s_random_numbers_go_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[int]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_rng_state", lambda: torch.tensor([3, 1, 4], dtype=torch.uint8)
    )
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: kept.append(state.tolist()))
    _save_random(tmp_path / "random-0")
    _load_random(tmp_path / "random-0")
    assert kept == [[3, 1, 4]]
    # What an accelerator left is no use to a machine without one, and the other way round.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _load_random(tmp_path / "random-0")
    _save_random(tmp_path / "random-1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    _load_random(tmp_path / "random-1")
    assert kept == [[3, 1, 4]]
