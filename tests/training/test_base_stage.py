"""The model that a study starts from: trained here or imported, and known by its content."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dynolab.hub
import models.language
import tasks.base
import tasks.ranks.train
from dynolab.data.rows import read_rows
from dynolab.errors import ConfigError
from dynolab.results.study import MetricsLine
from dynolab.store import Manifest, Store
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from flows.flow import Step
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from models.language import load_language_model, load_tokenizer
from models.tiny import TinyConfig, build_tiny
from tasks.base import (
    BASE,
    RECIPE,
    SHIPPED,
    BaseConfig,
    make_base,
    recipe_of,
    resolve_base,
    shipped_result,
)
from tasks.runtime.stage import plan_key
from tasks.runtime.work import StageResult, Work
from tests.flows.in_process import InProcess
from tests.training.small import distance, make_policy, make_tokenizer

DATA_KEY, BASE_KEY = "da" * 32, "ba" * 32


class Shown:
    """Progress that remembers which stage began with how many steps, and how it ended."""

    def __init__(self) -> None:
        self.began: list[tuple[str, int | None]] = []
        self.ended: list[str] = []

    def stage(self, name: str, total_steps: int | None, step: int = 0) -> Shown:
        self.began.append((name, total_steps))
        return self

    def update(self, step: int, text: str = "") -> None:
        pass

    def close(self, outcome: str = "done") -> None:
        self.ended.append(outcome)


class Bench:
    """One attempt at the stage, over a store that holds its data."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(f"file://{folder}/store", cache=folder / "cache")
        self.place = self.store.place("base", BASE_KEY)
        self.folder, self.shown = folder, Shown()
        source = folder / "made-data"
        make_tokenizer().save_pretrained(source / "tokenizer")
        (source / "corpus.jsonl").write_text('{"id": "r0", "prompt": "w1", "chosen": " w2"}\n')
        place = self.store.place("data", DATA_KEY)
        made = place.commit(source, Manifest(stage="data", key=DATA_KEY, version=1))
        self.data = StageResult.of(place, made, cached=False)

    def work(self, config: BaseConfig) -> Work[BaseConfig]:
        inputs = {"data": self.data}
        return Work(
            "the base",
            config,
            inputs,
            version=BASE.version,
            key_of=lambda other: plan_key(BASE, other, inputs),
            scratch=self.folder / "scratch",
            cache=self.folder / "cache",
            store=self.store,
            place=self.place,
            tracker=SimpleNamespace(run_id=None, folder=self.folder),  # type: ignore[arg-type]
            progress=self.shown,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, as `save_pretrained` writes it."""
    tokenizer = make_tokenizer()
    make_policy(tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[TrainJob]:
    """The trainings that were asked for; none is run."""
    asked: list[TrainJob] = []
    monkeypatch.setattr(tasks.ranks.train, "run", asked.append)
    return asked


def assert_same_weights(model: torch.nn.Module, expected: torch.nn.Module) -> None:
    assert distance(model.state_dict(), expected.state_dict()) == 0.0


def folder_config(folder: Path | str) -> BaseConfig:
    """Of a study that starts from a folder as it is now."""
    return resolve_base(BaseConfig(source=str(folder)))


def test_the_built_in_model_is_trained_on_the_corpus_of_the_data(
    bench: Bench, jobs: list[TrainJob]
) -> None:
    """With its seed, and the tokenizer of the data."""
    work = bench.work(BaseConfig(seed=3, training=TrainConfig(steps=7)))
    assert make_base(work).keys() == {"seconds"}
    (job,) = jobs
    data = work.input_folder("data")
    assert job == TrainJob(
        config=work.config.training,
        model=work.scratch / "initial",
        examples=data / "corpus.jsonl",
        output=work.output,
        resume_out=work.scratch / "resume",
    )
    assert work.step == 7
    assert (bench.shown.began, bench.shown.ended) == ([("the base", 7)], ["done"])
    tokenizer = load_tokenizer(job.model)
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
    model = load_language_model(job.model, tokenizer=tokenizer)
    assert_same_weights(model, build_tiny(TinyConfig(seed=3), tokenizer))


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[InProcess, Step, StageResult]:
    """The step that makes the built-in study's base, with the data that it reads."""
    study = resolved(load_parameters(StudyParameters, Path("builtin.yaml")))
    steps = {step.name: step for step in study_steps(study)}
    lab = InProcess(tmp_path_factory.mktemp("studied"))
    return lab, steps["base"], lab.run_steps([steps["data"]])["data"]


def test_the_built_in_study_s_base_is_shipped(
    studied: tuple[InProcess, Step, StageResult], jobs: list[TrainJob]
) -> None:
    lab, step, data = studied
    made = lab.run_steps([step], {"data": data})["base"]
    assert not jobs
    weights = load_file(lab.folder(made) / "model/model.safetensors")
    (shipped,) = (folder for folder in SHIPPED.iterdir() if folder.name == "builtin")
    assert distance(weights, load_file(shipped / "model/model.safetensors")) == 0.0
    assert not (lab.folder(made) / RECIPE).exists()
    # Any other training is a training.
    other = step.config.model_copy(update={"seed": 1})
    assert shipped_result(recipe_of(other, lab.folder(data))) is None
    assert shipped_result(recipe_of(step.config, lab.folder(data))) == shipped


@pytest.mark.study
def test_the_recipe_makes_what_is_shipped(
    studied: tuple[InProcess, Step, StageResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loss by loss to rounding, until 250 steps of AdamW have made more of it."""
    lab, step, data = studied
    monkeypatch.setattr(tasks.base, "SHIPPED", tmp_path)
    trained = replace(step, stage=replace(step.stage, version=10**6))
    made = lab.run_steps([trained], {"data": data})["base"]
    losses, shipped = (
        np.array([line.metrics["train/loss"] for line in read_rows(file, MetricsLine)])
        for file in (lab.folder(made) / "metrics.jsonl", SHIPPED / "builtin/metrics.jsonl")
    )
    np.testing.assert_allclose(losses[:50], shipped[:50], rtol=1e-5)
    np.testing.assert_allclose(losses, shipped, rtol=0.1)


def test_a_training_that_fails_leaves_its_newest_state_in_the_store(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(job: TrainJob) -> None:
        for step in (2, 4):
            state = job.resume_out / f"step-{step:08d}"
            state.mkdir()
            (state / "weights.bin").write_bytes(b"%d" % step)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(tasks.ranks.train, "run", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        make_base(bench.work(BaseConfig(training=TrainConfig(steps=7))))
    step, state = bench.place.newest_resume() or pytest.fail("no state was kept")
    assert (step, (state / "weights.bin").read_bytes()) == (4, b"4")
    assert bench.shown.ended == ["failed"]


@pytest.mark.parametrize("written", ["whole", "~"])
def test_a_folder_is_copied_with_its_tokenizer(
    written: str, bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    work = bench.work(folder_config(folder if written == "whole" else "~/model"))
    make_base(work)
    assert [path.name for path in work.output.iterdir()] == ["model"]
    copy = work.output / "model"
    tokenizer = load_tokenizer(copy)
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
    copied = load_language_model(copy, tokenizer=tokenizer)
    assert_same_weights(copied, make_policy(make_tokenizer()))


def test_a_folder_that_changed_since_the_study_began_is_refused(bench: Bench, folder: Path) -> None:
    work = bench.work(folder_config(folder))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    message = f"base.source = {str(folder)!r}: its files changed after the study began"
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_base(work)
    assert list(work.output.iterdir()) == []


@pytest.fixture
def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str | None]]:
    """What was loaded, from where and of which revision; each name leads to the folder."""
    asked: list[tuple[str, str, str | None]] = []

    def tokenizer_of(source: str, *, revision: str | None = None) -> Any:
        asked.append(("tokenizer", source, revision))
        return load_tokenizer(folder)

    def model_of(source: str, *, revision: str | None = None, tokenizer: Any = None) -> Any:
        assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
        asked.append(("model", source, revision))
        return load_language_model(folder)

    def usual_reads_otherwise(source: str, revision: str | None, made: Path) -> int:
        asked.append(("usual tokenizer", source, revision))
        return 0

    monkeypatch.setattr(models.language, "load_tokenizer", tokenizer_of)
    monkeypatch.setattr(models.language, "load_language_model", model_of)
    monkeypatch.setattr(tasks.base, "auto_reads_otherwise", usual_reads_otherwise)
    return asked


def test_a_model_of_the_hub_is_loaded_at_its_commit(
    bench: Bench, loaded: list[tuple[str, str, str | None]]
) -> None:
    """Model and tokenizer are of one revision; a folder of that name is not looked for."""
    work = bench.work(BaseConfig(source="someone/model", revision="c" * 40))
    make_base(work)
    assert loaded == [
        ("tokenizer", "someone/model", "c" * 40),
        ("model", "someone/model", "c" * 40),
        ("usual tokenizer", "someone/model", "c" * 40),
    ]
    assert_same_weights(load_language_model(work.output / "model"), make_policy(make_tokenizer()))


def test_a_revision_means_nothing_to_a_folder(
    bench: Bench, folder: Path, loaded: list[tuple[str, str, str | None]]
) -> None:
    """What stands there is the hash of its content, which no loader could resolve."""
    make_base(bench.work(folder_config(folder)))
    assert [source for _, source, _ in loaded] == [str(folder)] * 3
    assert [revision for _, _, revision in loaded] == [None] * 3


def test_the_built_in_model_has_no_revision_whatever_folders_there_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rename(folder.with_name("builtin"))
    monkeypatch.chdir(folder.parent)
    config = BaseConfig(seed=5)
    assert resolve_base(config) == config


def test_a_folders_revision_is_the_hash_over_its_files_names_and_hashes(folder: Path) -> None:
    """Whatever moves it has every study that starts from a folder compute anew."""
    (folder / "more").mkdir()
    (folder / "more/notes.txt").write_text("is not read with the model")
    hashes = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= hashes.keys()
    expected = hashlib.sha256(json.dumps(dict(sorted(hashes.items()))).encode()).hexdigest()
    config = BaseConfig(source=str(folder), revision="main", seed=4)
    assert resolve_base(config) == config.model_copy(update={"revision": expected})


@pytest.mark.parametrize(
    ("given", "asked_for"), [(None, "main"), ("v2", "v2"), ("c" * 40, "c" * 40)]
)
def test_a_name_of_the_hub_is_pinned_to_the_commit_of_its_branch(
    given: str | None, asked_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str, str, str]] = []

    def resolve_commit(kind: str, name: str, revision: str, *, field: str) -> str:
        asked.append((kind, name, revision, field))
        return "d" * 40

    monkeypatch.setattr(dynolab.hub, "resolve_commit", resolve_commit)
    config = BaseConfig(source="someone/model", revision=given, seed=4)
    assert resolve_base(config) == config.model_copy(update={"revision": "d" * 40})
    assert asked == [("model", "someone/model", asked_for, "base.source")]


FOLDER = "{folder}"
UNREADABLE = {
    "home of nobody": (
        lambda folder: None,
        "~nobody-of-that-name/model",
        r"base\.source = '~nobody-of-that-name/model': cannot be read \(.*"
        r"; give an absolute path, or one relative to the working directory",
    ),
    "no configuration": (
        lambda folder: (folder / "config.json").unlink(),
        FOLDER,
        r"base\.source = '{folder}/config\.json': cannot be read \(FileNotFound.*"
        r"; save the model again",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        FOLDER,
        r"base\.source = '{folder}': the folder holds no \*\.safetensors weights; "
        r"save the model with save_pretrained",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_folder_that_is_no_model_is_refused_by_field(folder: Path, name: str) -> None:
    damage, source, message = UNREADABLE[name]
    damage(folder)
    with pytest.raises(ConfigError) as caught:
        folder_config(source.format(folder=folder))
    assert re.fullmatch(message.format(folder=re.escape(str(folder))), str(caught.value))


def test_a_folder_with_a_file_that_cannot_be_read_is_refused_by_field(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked(path: Path) -> None:
        raise PermissionError("is locked")

    monkeypatch.setattr(tasks.base, "hash_file", locked)
    message = f"base.source = {str(folder)!r}: cannot be read (PermissionError: is locked)"
    with pytest.raises(ConfigError, match=re.escape(message)):
        folder_config(folder)


def test_a_models_key_is_of_its_content_and_not_of_where_it_lies() -> None:
    assert (BASE.name, BASE.body, BASE.operational) == ("base", make_base, ("source",))
