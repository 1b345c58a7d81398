"""Which images a study uses: the settings, and the revision that their content stands at."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.files import (
    check_source,
    dataset_commit,
    file_digest,
    named_file,
    named_path,
    pinned,
)
from dynolab.errors import ConfigError

IDX_FILES = tuple(
    f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")
)
"""MNIST's files by name; each may stand there compressed, with `.gz` after it."""


class ImageConfig(BaseModel):
    """Labelled images, and how many of them are trained on, chosen by and tested with."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: Literal["digits", "idx", "hub", "arrays"] = Field(
        "digits",
        description="scikit-learn's 8 × 8 digits, a folder of MNIST's idx files, a data set of "
        "the Hub, or arrays in one .npz file.",
    )
    path: str | None = Field(
        None,
        description="Of source `idx`: the folder. Of `arrays`: the .npz file with `images`, "
        "`labels` and, where people labelled them too, `human` (images × classes).",
    )
    hub_name: str | None = Field(
        None, description="Of source `hub`: ylecun/mnist, uoft-cs/cifar10, or alike."
    )
    revision: str | None = Field(
        None, description="Hub: branch, tag or commit. Files: the sha256 of their content."
    )
    classes: int = Field(10, ge=2, description="Labels lie in 0 … classes − 1.")
    train: int = Field(1_000, ge=2, description="Images to train on.")
    validation: int = Field(200, ge=1, description="Images to choose by.")
    test: int = Field(400, ge=1, description="Images to test with.")
    seed: int = Field(0, ge=0, description="Of the draw.")

    @model_validator(mode="after")
    def _names_its_source(self) -> ImageConfig:
        check_source(self, "data", path=("idx", "arrays"), hub_name=("hub",))
        return self


def resolve_images(config: ImageConfig) -> ImageConfig:
    """The config with the revision that its content stands at.

    A Hub branch becomes its commit, files the sha256 of their bytes; a revision that files do not
    have is refused.
    """
    if config.source == "digits":
        return config
    if config.source == "hub":
        revision = hub_commit(config)
    elif config.source == "idx":
        revision = _content(config, [idx_file(config, name) for name in IDX_FILES])
    else:
        revision = _content(config, [array_file(config)])
    return config.model_copy(update={"revision": revision})


def hub_commit(config: ImageConfig) -> str:
    """The commit of the Hub data set."""
    assert config.hub_name is not None
    return dataset_commit("data.hub_name", config.hub_name, config.revision)


def idx_file(config: ImageConfig, name: str) -> Path:
    """One of MNIST's files in the folder, plain or compressed."""
    folder = named_path("data.path", config.path)
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise ConfigError(
        "data.path", config.path, f"holds no {name} or {name}.gz; name MNIST's folder"
    )


def array_file(config: ImageConfig) -> Path:
    """The file of arrays."""
    return named_file("data.path", config.path, "name a .npz file")


def _content(config: ImageConfig, files: Sequence[Path]) -> str:
    """The sha256 over the files' own, which must be the expected one where that is given."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(file_digest("data.path", file))
    revision = whole.hexdigest()
    remedy = f"the files now have sha256 {revision}; restore them"
    return pinned("data.revision", revision, config.revision, remedy)
