"""Stage `base`: the model that finetuning starts from, trained here or imported."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

import models
from dynolab import hub
from dynolab.costs.machines import StageCost
from dynolab.costs.memory import FP32
from dynolab.data.batches import CHOSEN
from dynolab.data.source_checks import FolderOrName, named_path
from dynolab.data.sources.load import DataConfig
from dynolab.data.unknown import auto_reads_otherwise
from dynolab.errors import ConfigError, reading
from dynolab.store import hash_file
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from models.folder import adapter_base, check_settings, loaded_files, read_settings
from tasks.runtime.stage import Stage
from tasks.runtime.training_monitor import TrainingMonitor
from tasks.runtime.work import StageConfig, Work
from tasks.shared.costs import Costs, Reads

OTHERWISE = "tokenizer/read_otherwise"
"""Metric: sample texts that AutoTokenizer splits otherwise than the model's tokenizer.json."""

SHIPPED, RECIPE = Path(models.__file__).parent / "shipped", "recipe.json"
"""Results of the built-in model's training, a folder each, with the recipe that makes it."""

log = logging.getLogger(__name__)


class BaseConfig(StageConfig):
    """A model folder or Hub name, or the built-in model with its training."""

    source: FolderOrName = Field("builtin", description="`builtin`, a folder, or a Hub name.")
    revision: str | None = Field(
        None, description="Hub: branch, tag or commit. Folder: set to the hash of its content."
    )
    seed: int = Field(0, ge=0, description="Seed of the built-in model's weights.")
    training: TrainConfig = Field(TrainConfig(), description="Training of the built-in model.")


def make_base(work: Work[BaseConfig]) -> dict[str, float]:
    """Result: `model/`, a safetensors folder with its tokenizer."""
    began = time.monotonic()
    metrics: dict[str, float] = {}
    if work.config.source == "builtin":
        _train(work)
    else:
        metrics = _import(work)
    return {**metrics, "seconds": time.monotonic() - began}


def _train(work: Work[BaseConfig]) -> None:
    from models.language import load_tokenizer, save_language_model
    from models.tiny import TinyConfig, build_tiny
    from tasks.ranks.train import run

    data, config = work.input_folder("data"), work.config.training
    shipped = shipped_result(recipe_of(work.config, data))
    if shipped is not None:
        log.info("what this training makes is shipped with Dynolab, and is not trained again")
        ignored = shutil.ignore_patterns(RECIPE)
        shutil.copytree(shipped, work.output, ignore=ignored, dirs_exist_ok=True)
        return
    tokenizer = load_tokenizer(data / "tokenizer")
    initial = work.scratch / "initial"
    save_language_model(
        build_tiny(TinyConfig(seed=work.config.seed), tokenizer), tokenizer, initial
    )
    states = work.scratch / "resume"
    job = TrainJob(
        config=config,
        model=initial,
        examples=data / "corpus.jsonl",
        output=work.output,
        resume_out=states,
    )
    work.step = config.steps
    with TrainingMonitor(work, states, config.steps):
        run(job)


def recipe_of(config: BaseConfig, data: Path) -> dict[str, Any]:
    """All that the built-in model's training depends on: settings that are not defaults, and the
    hashes of what it reads."""
    files = ("corpus.jsonl", "tokenizer/tokenizer.json")
    return {
        "seed": config.seed,
        "training": config.training.model_dump(mode="json", exclude_defaults=True),
        **{file: hash_file(data / file).sha256 for file in files},
    }


def shipped_result(recipe: dict[str, Any]) -> Path | None:
    """The folder of the shipped result of a recipe; None where none is shipped."""
    for file in SHIPPED.glob(f"*/{RECIPE}"):
        if json.loads(file.read_text()) == recipe:
            return file.parent
    return None


def _import(work: Work[BaseConfig]) -> dict[str, float]:
    """Copies the model into the store, so that the store holds all inputs of a study.

    Returns how many of some sample texts AutoTokenizer, and so TRL, splits otherwise.
    """
    from models.language import load_language_model, load_tokenizer, save_language_model

    folder = named_path(_FIELD, work.config.source)
    source = str(folder) if folder.is_dir() else work.config.source
    revision = None if folder.is_dir() else work.config.revision
    tokenizer = load_tokenizer(source, revision=revision)
    model = load_language_model(source, revision=revision, tokenizer=tokenizer)
    if folder.is_dir() and _content_hash(folder) != work.config.revision:
        raise ConfigError(
            _FIELD, source, "its files changed after the study began; run the study again"
        )
    save_language_model(model, tokenizer, work.output / "model")
    texts = auto_reads_otherwise(source, revision, work.output / "model")
    return {OTHERWISE: float(texts)} if texts else {}


def resolve_base(config: BaseConfig) -> BaseConfig:
    """Sets `revision` to what identifies the model's content, so that equal content gives equal
    configs: the commit of a Hub branch, or the sha256 over a folder's file names and hashes.

    **Raises:** `ConfigError` for a folder that cannot be loaded, judging by its file names and
    config.json.
    """
    if config.source == "builtin":
        return config
    folder = named_path(_FIELD, config.source)
    if not folder.is_dir():
        revision = hub.resolve_commit(
            "model", config.source, config.revision or "main", field="base.source"
        )
        return config.model_copy(update={"revision": revision})
    return config.model_copy(update={"revision": _content_hash(folder)})


def _content_hash(folder: Path) -> str:
    """The sha256 over the names and hashes of all files that loading the model can read."""
    base = adapter_base(folder, _FIELD)
    if base is None:
        check_settings(folder, read_settings(folder, _FIELD))
    files = loaded_files(folder, _FIELD)
    with reading(_FIELD, str(folder), "give a folder that you can read"):
        hashes: dict[str, object] = {name: hash_file(folder / name).sha256 for name in files}
    if base is not None:
        name, revision = base
        local = Path(name).is_dir()
        commit = (
            "" if local else hub.resolve_commit("model", name, revision or "main", field=_FIELD)
        )
        hashes["base"] = _content_hash(Path(name)) if local else [name, commit]
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()


_FIELD = "base.source"


def _may_be_shipped(config: BaseConfig) -> bool:
    """Whether a training of these settings is shipped, for some corpus."""
    recipes = [json.loads(file.read_text()) for file in SHIPPED.glob(f"*/{RECIPE}")]
    settings = (config.seed, config.training.model_dump(mode="json", exclude_defaults=True))
    return any((recipe["seed"], recipe["training"]) == settings for recipe in recipes)


def estimate(costs: Costs, config: BaseConfig, _: Reads) -> StageCost:
    """The built-in model's training, or a copy of an imported one."""
    if config.source == "builtin" and not _may_be_shipped(config):
        corpus = [costs.lengths(row, (CHOSEN,)) for row in costs.inputs.corpus]
        return costs.training(config.training, corpus)
    cost = costs.passes(0)
    size = FP32 * cost.parameters
    return replace(cost, host_bytes=size, read=size, written=2 * size)


# The hash of its content identifies a folder, so its path is no part of the key.
BASE = Stage("base", 2, make_base, ("source",), estimate)


def seeded_data(data: DataConfig, seed: int) -> DataConfig:
    """Sets all seeds of the data, the built-in world's included."""
    return data.model_copy(
        update={"seed": seed, "world": data.world.model_copy(update={"seed": seed})}
    )


def seeded_base(base: BaseConfig, seed: int) -> BaseConfig:
    """Sets the seeds of the base model's weights and of its training."""
    return base.model_copy(
        update={"seed": seed, "training": base.training.model_copy(update={"seed": seed})}
    )


def check_model_fits_data(base: BaseConfig, data: DataConfig) -> None:
    """Raises `ConfigError` for the built-in model with rows of another source."""
    if base.source == "builtin" and data.source != "world":
        raise ConfigError(
            "base.source",
            base.source,
            "the built-in model has only the vocabulary of the built-in world; with "
            f"data.source = {data.source} give a model folder or a Hub name",
        )
