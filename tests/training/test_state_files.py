"""What a resume state holds, whom it belongs to, and what is said where it cannot be written."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynolab.errors import ConfigError
from dynolab.training.config import GroupTrainConfig, TrainConfig
from dynolab.training.job import TrainJob
from dynolab.training.resume import (
    FREE,
    StateFacts,
    _load_random,
    _save_random,
    load_state,
    save_state,
)
from tests.training.interrupted import seed_generators
from tests.training.small import group_settings, make_job, settings
from tests.training.states import LOADED, Part, change_facts, files, load, save, warning

RECORD = "forces/step-00000001/step.json"


def test_a_state_holds_its_facts_its_parts_and_the_results_so_far(
    started: TrainJob, inputs: Path
) -> None:
    folder = save(started)
    model = inputs / "model"
    read = (inputs / "train.jsonl", model / "config.json", model / "model.safetensors")
    facts = StateFacts(
        step=3,
        ranks=1,
        threads=torch.get_num_threads(),
        settings=started.config.model_dump(mode="json", exclude=FREE),
        inputs={path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in read},
    )
    assert (folder / "state.json").read_text() == facts.model_dump_json(indent=1)
    assert files(folder) == [
        "engine/part",
        f"output/{RECORD}",
        "output/metrics.jsonl",
        "output/probes.jsonl",
        "random-0.json",
        "random-0.safetensors",
        "source/part",
        "state.json",
    ]
    assert (folder / "source/part").read_text() == "[3]"
    # What is written on is copied; a record never is, and stands on the disk once.
    assert (folder / "output" / RECORD).stat().st_nlink == 2
    assert (folder / "output/metrics.jsonl").stat().st_nlink == 1
    assert [path.name for path in started.resume_out.iterdir()] == ["step-00000003"]


def test_records_are_copied_where_the_disk_has_no_links(
    started: TrainJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr("os.link", refused)
    copied = save(started) / "output" / RECORD
    assert copied.read_text() == "record" and copied.stat().st_nlink == 1


def test_loading_gives_the_parts_their_files_and_the_results_so_far(
    started: TrainJob, later: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save(started)
    metrics = later.output / "metrics.jsonl"
    for _ in range(2):
        assert load(folder, later) == LOADED
        assert files(later.output) == [RECORD, "metrics.jsonl", "probes.jsonl"]
        assert (later.output / RECORD).read_text() == "record"
        assert metrics.read_text() == "metrics\n"
        metrics.write_text("metrics\nof steps that are made again\n")
    assert not caplog.records


def test_other_threads_are_told_of_with_both_numbers(
    started: TrainJob, later: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    folder, threads = save(started), torch.get_num_threads()
    change_facts(folder, threads=threads + 1)
    load(folder, later)
    assert warning(caplog) == (
        f"this run computes on {threads} threads and the run before on {threads + 1}: "
        "sums may round differently, so the last bits may differ"
    )


@pytest.mark.parametrize(
    ("before", "after", "field", "value", "known"),
    [
        (settings(), settings(seed=7), "seed", 7, "0"),
        (
            settings(),
            settings(objective={"name": "dpo", "beta": 0.3}),
            "objective.beta",
            0.3,
            "0.1",
        ),
        # A name before the settings that only one of the two has.
        (settings(), settings(objective={"name": "simpo"}), "objective.beta", 2.0, "0.1"),
        (settings(), settings(objective={"name": "ipo"}), "objective.name", "ipo", "'dpo'"),
        (settings(), settings(clip_norm=0.25), "clip_norm", 0.25, "0.5"),
        # The first by name.
        (settings(), settings(seed=7, clip_norm=0.25, batch_size=4), "batch_size", 4, "8"),
        (
            group_settings(),
            group_settings(objective={"name": "simko", "kl": 0.05}),
            "objective.name",
            "simko",
            "'grpo'",
        ),
        (
            group_settings(),
            group_settings(objective={"name": "grpo", "kl": 0.1}),
            "objective.kl",
            0.1,
            "0.05",
        ),
        (group_settings(), settings(), "batch_size", 8, "4"),
    ],
)
def test_the_state_of_another_training_is_refused_by_its_setting(
    before: TrainConfig | GroupTrainConfig,
    after: TrainConfig | GroupTrainConfig,
    field: str,
    value: object,
    known: str,
    inputs: Path,
    tmp_path: Path,
) -> None:
    folder = save(make_job(inputs, tmp_path / "first", before))
    engine = Part()
    with pytest.raises(ConfigError) as refused:
        load_state(engine, Part(), folder, make_job(inputs, tmp_path / "other", after))
    assert str(refused.value) == (
        f"{field} = {value!r}: the resume state belongs to a training with {known}; "
        "resume with that, or start anew"
    )
    assert engine.loaded == []


def test_settings_that_change_no_update_may_change(
    started: TrainJob, inputs: Path, tmp_path: Path
) -> None:
    changed = settings(steps=9, probe_every=1, checkpoint_every=1, record_steps=[4])
    assert load(save(started), make_job(inputs, tmp_path / "on", changed)) == LOADED


DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("name", "known"),
    [("train.jsonl", DIGEST), ("z.safetensors", DIGEST), ("train.jsonl", None)],
    ids=["another", "one more", "one less"],
)
def test_a_state_of_other_inputs_is_of_another_training(
    name: str, known: str | None, started: TrainJob
) -> None:
    folder, mine = save(started), started.input_digests()
    digests = {file: digest for file, digest in mine.items() if file != name}
    change_facts(folder, inputs=digests if known is None else {**digests, name: known})
    with pytest.raises(ConfigError) as refused:
        load(folder, started)
    assert str(refused.value) == (
        f"input {name} = {mine.get(name)!r}: the resume state belongs to a training with "
        f"{known!r}; resume with that, or start anew"
    )


def test_a_state_of_more_ranks_is_read_and_told_of(
    started: TrainJob, later: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save(started)
    facts = json.loads((folder / "state.json").read_text())
    engine = {**facts["settings"]["engine"], "kind": "deepspeed", "ranks": 2}
    change_facts(folder, ranks=2, settings={**facts["settings"], "engine": engine})
    assert load(folder, later) == LOADED
    assert warning(caplog) == (
        "step 3 was reached on 2 ranks and the training goes on on 1: sums round differently, so "
        "the result equals that of one number of ranks up to rounding"
    )


def test_what_is_no_state_of_this_version_is_refused(started: TrainJob) -> None:
    folder = save(started)
    file = folder / "state.json"
    more = json.dumps(json.loads(file.read_text()) | {"more": 1})
    for content in ("{}", "", more, None):
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        with pytest.raises(ConfigError, match="holds no resume state") as refused:
            load(folder, started)
        assert (refused.value.field, refused.value.value) == ("resume_from", str(folder))


def test_a_disk_without_room_costs_the_state_and_not_the_training(
    started: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(Part):
        def save(self, *given: Any) -> None:
            super().save(*given)
            raise OSError(28, "No space left on device")

    save_state(Full(), Part(), 3, started)
    assert list(started.resume_out.iterdir()) == []
    assert warning(caplog) == (
        "training goes on without a resume state of step 3: "
        "OSError: [Errno 28] No space left on device"
    )


def test_a_folder_that_cannot_be_made_costs_the_state_and_not_the_training(
    started: TrainJob, caplog: pytest.LogCaptureFixture
) -> None:
    file = started.resume_out / "file"
    file.write_text("no folder")
    save(started.model_copy(update={"resume_out": file}))
    message = "training goes on without a resume state of step 3: NotADirectoryError:"
    assert warning(caplog).startswith(message)
    assert files(started.resume_out) == ["file"]


def test_what_an_earlier_attempt_left_is_no_part_of_a_state(started: TrainJob) -> None:
    left = started.resume_out / ".step-00000003.unfinished/engine"
    left.mkdir(parents=True)
    (left / "shard-7").write_text("of another world size")
    assert files(save(started) / "engine") == ["part"]


DRAWS: dict[str, Callable[[], float]] = {
    "python": random.random,
    "python gauss": lambda: random.gauss(0.0, 1.0),
    "numpy": np.random.random,
    "numpy gauss": lambda: float(np.random.standard_normal()),
    "torch": lambda: torch.rand(()).item(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_go_on_where_the_state_was_saved(name: str, tmp_path: Path) -> None:
    draw = DRAWS[name]
    seed_generators(3)
    draw()  # Gaussian numbers come in pairs, of which the second is kept
    _save_random(tmp_path / "random-0")
    expected = [draw() for _ in range(3)]
    seed_generators(4)
    _load_random(tmp_path / "random-0")
    assert [draw() for _ in range(3)] == expected


def test_an_accelerator_s_random_numbers_go_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[list[int]] = []
    state = torch.tensor([3, 1, 4], dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
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
