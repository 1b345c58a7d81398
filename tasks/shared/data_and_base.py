"""The rows and the untrained model that a flow on text starts from, by seed."""

from __future__ import annotations

from dynolab.data.sources.load import DataConfig
from dynolab.errors import ConfigError
from tasks.base import BASE, BaseConfig
from tasks.runtime.pipeline import Step


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


def base_step(name: str, base: BaseConfig, *, data: str) -> Step:
    """The step that makes the untrained model; a built-in one is trained on rows of step `data`."""
    return Step(name, BASE, base, {"data": data} if base.source == "builtin" else {})
