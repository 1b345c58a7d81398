"""Settings of the images that a study uses, and the revision that pins their content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dynolab.data.source_checks import (
    FilePath,
    check_source,
    dataset_commit,
    file_digest,
    named_file,
    named_path,
    pinned,
)
from dynolab.errors import ConfigError

IDX_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
"""Names of MNIST's files; each may be compressed, with `.gz` appended."""


class ImageConfig(BaseModel):
    """Labelled images, and how many of them are used for training, validation and test."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    source: Literal["digits", "idx", "hub", "arrays"] = Field(
        "digits",
        description="scikit-learn's 8 × 8 digits, a folder of MNIST's idx files, a data set of "
        "the Hub, or arrays in one .npz file.",
    )
    path: FilePath | None = Field(
        None,
        description="Source `idx`: the folder. Source `arrays`: the .npz file with `images`, "
        "`labels` and, if people labelled the images too, `human` (images × classes).",
    )
    hub_name: str | None = Field(
        None, description="Source `hub`: ylecun/mnist, uoft-cs/cifar10, or similar."
    )
    revision: str | None = Field(
        None, description="Hub: branch, tag or commit. Files: the sha256 of their content."
    )
    classes: int = Field(10, ge=2, description="Number of classes; labels lie in 0 … classes − 1.")
    train: int = Field(1_000, ge=2, description="Number of training images.")
    validation: int = Field(200, ge=1, description="Number of images for model selection.")
    test: int = Field(400, ge=1, description="Number of test images.")
    seed: int = Field(0, ge=0, description="Seed of the random draw.")

    @model_validator(mode="after")
    def _check_source(self) -> ImageConfig:
        check_source(self, "data", path=("idx", "arrays"), hub_name=("hub",))
        return self


def resolve_images(config: ImageConfig) -> ImageConfig:
    """Returns the config with the revision of its content.

    That is the commit of a Hub branch, or the sha256 of files' bytes; files that do not match a
    given revision raise `ConfigError`.
    """
    if config.source == "digits":
        return config
    if config.source == "hub":
        revision = hub_commit(config)
    elif config.source == "idx":
        revision = _content_revision(config, [idx_file(config, name) for name in IDX_FILES])
    else:
        revision = _content_revision(config, [array_file(config)])
    return config.model_copy(update={"revision": revision})


def hub_commit(config: ImageConfig) -> str:
    """The commit of the Hub data set."""
    assert config.hub_name is not None
    return dataset_commit("data.hub_name", config.hub_name, config.revision)


def idx_file(config: ImageConfig, name: str) -> Path:
    """The path of one of MNIST's files in the folder, plain or compressed."""
    folder = named_path("data.path", config.path)
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise ConfigError(
        "data.path", config.path, f"has no {name} or {name}.gz; give the folder of MNIST's files"
    )


def array_file(config: ImageConfig) -> Path:
    """The file of arrays."""
    return named_file("data.path", config.path, "name a .npz file")


def _content_revision(config: ImageConfig, files: Sequence[Path]) -> str:
    """The sha256 over the files' digests; it must match the config's revision if that is set."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(file_digest("data.path", file))
    revision = whole.hexdigest()
    remedy = f"the files now have sha256 {revision}; restore them"
    return pinned("data.revision", revision, config.revision, remedy)
