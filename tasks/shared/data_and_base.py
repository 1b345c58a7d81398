"""What a flow on text starts from: rows and an untrained model, by seed."""

from __future__ import annotations

from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from tasks.base import BASE, BaseConfig
from tasks.runtime.pipeline import Step


def seeded_data(data: DataConfig, seed: int) -> DataConfig:
    """The data with one seed everywhere."""
    world = data.world.model_copy(update={"seed": seed})
    return data.model_copy(update={"seed": seed, "world": world})


def seeded_base(base: BaseConfig, seed: int) -> BaseConfig:
    """The base model with one seed of weights and of its training."""
    training = base.training.model_copy(update={"seed": seed})
    return base.model_copy(update={"seed": seed, "training": training})


def check_model_knows_data(base: BaseConfig, data: DataConfig) -> None:
    """Refuses the built-in model for rows of another source."""
    if base.source == "builtin" and data.source != "world":
        raise ConfigError(
            "base.source",
            base.source,
            "the built-in model knows the words of the built-in world alone; with "
            f"data.source = {data.source} name a model folder or a Hub name",
        )


def base_step(name: str, base: BaseConfig, *, data: str) -> Step:
    """The stage that gives the untrained model; the built-in one reads the rows of step `data`."""
    return Step(name, BASE, base, {"data": data} if base.source == "builtin" else {})
