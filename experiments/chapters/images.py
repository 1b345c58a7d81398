"""Labelled images from scikit-learn's digits, MNIST's idx files, the Hub, or your own arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from safetensors.torch import load_file, save_file
from torch import Tensor

from dynolab.data.source_checks import (
    FilePath,
    check_source,
    dataset_commit,
    file_digest,
    named_file,
    named_path,
    pinned,
)
from dynolab.errors import ConfigError, reading
from experiments.chapters.image_files import Labelled, read_arrays, read_hub, read_idx

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

    That is the commit of a Hub branch, or the sha256 over files' digests; files that do not match a
    given revision raise `ConfigError`.
    """
    if config.source == "digits":
        return config
    if config.source == "hub":
        return config.model_copy(update={"revision": hub_commit(config)})
    of_source = config.source == "idx"
    files = [idx_file(config, name) for name in IDX_FILES] if of_source else [array_file(config)]
    digests = [file_digest("data.path", file) for file in files]
    revision = hashlib.sha256(b"".join(digests)).hexdigest()
    revision = pinned(
        "data.revision",
        revision,
        config.revision,
        f"the files now have sha256 {revision}; restore them",
    )
    return config.model_copy(update={"revision": revision})


def hub_commit(config: ImageConfig) -> str:
    """The commit of the Hub data set."""
    return dataset_commit("data.hub_name", str(config.hub_name), config.revision)


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


@dataclass(frozen=True)
class Images:
    """Images with their labels.

    - `pixels`: float32 in 0..1.
    - `labels`: classes from 0.
    - `human`: class probabilities from people's labels, if the source has them.
    """

    pixels: Float[Tensor, "images channels height width"]
    labels: Int[Tensor, " images"]
    human: Float[Tensor, "images classes"] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def take(self, index: Int[Tensor, " some"] | slice) -> Images:
        """Some of the images, in the order of the index."""
        human = None if self.human is None else self.human[index]
        return Images(self.pixels[index], self.labels[index], human)

    def to(self, device: torch.device | str) -> Images:
        """The images on a device."""
        human = None if self.human is None else self.human.to(device)
        return Images(self.pixels.to(device), self.labels.to(device), human)


SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class ImageSplits:
    """Training, validation and test images; no image is in two of them."""

    train: Images
    validation: Images
    test: Images
    classes: int

    def to(self, device: torch.device | str) -> ImageSplits:
        """The splits on a device."""
        return ImageSplits(
            self.train.to(device), self.validation.to(device), self.test.to(device), self.classes
        )


def load_images(config: ImageConfig) -> ImageSplits:
    """Draws the splits of a source by seed, with classes as balanced as it allows.

    Test images are drawn from the source's own test part if it has one.

    **Raises:** `ConfigError` for a file that is missing, truncated or of another format, images of
    different shapes, pixels or labels out of range, a class without examples, too few images.
    """
    parts = _read(config)
    for part in parts:
        _check(part, config)
    if len(parts) == 1:
        train, validation, test = _draw_splits(parts[0], config, SPLITS)
    else:
        if parts[0].pixels.shape[1:] != parts[1].pixels.shape[1:]:
            raise ConfigError(
                "data",
                [part.pixels.shape[1:] for part in parts],
                "training and test images have different shapes; give files of one data set",
            )
        train, validation = _draw_splits(parts[0], config, ("train", "validation"))
        (test,) = _draw_splits(parts[1], config, ("test",))
    _check_classes(train, config)
    return ImageSplits(train, validation, test, config.classes)


def write_images(splits: ImageSplits, file: Path) -> None:
    """Writes splits as one file of safetensors."""
    tensors = {"classes": torch.tensor(splits.classes)}
    for name in SPLITS:
        images: Images = getattr(splits, name)
        tensors |= {f"{name}.pixels": images.pixels, f"{name}.labels": images.labels}
        if images.human is not None:
            tensors[f"{name}.human"] = images.human
    save_file(tensors, file)


def read_images(file: Path) -> ImageSplits:
    """Reads what `write_images` wrote; `ConfigError` for a file that it cannot have written."""
    with reading(file.name, str(file), "run again what wrote it"):
        tensors = load_file(file)
        train, validation, test = (
            Images(
                tensors[f"{name}.pixels"], tensors[f"{name}.labels"], tensors.get(f"{name}.human")
            )
            for name in SPLITS
        )
        return ImageSplits(train, validation, test, int(tensors["classes"]))


def _read(config: ImageConfig) -> list[Labelled]:
    """Reads a source's only part, or its training and its test part."""
    if config.source == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        return [Labelled("digits", (digits.images / 16)[:, None], digits.target)]
    if config.source == "idx":
        return [
            read_idx(
                idx_file(config, f"{part}-images-idx3-ubyte"),
                idx_file(config, f"{part}-labels-idx1-ubyte"),
            )
            for part in ("train", "t10k")
        ]
    if config.source == "hub":
        name, commit = str(config.hub_name), hub_commit(config)
        return [read_hub(name, commit, split) for split in ("train", "test")]
    return [read_arrays(array_file(config))]


def _check(part: Labelled, config: ImageConfig) -> None:
    pixels, labels, human = part.pixels, part.labels, part.human
    if len(pixels) != len(labels):
        raise ConfigError(
            part.origin,
            f"{len(pixels)} images and {len(labels)} labels",
            "every image needs one label; give files that belong together",
        )
    if pixels.ndim != 4 or 0 in pixels.shape:
        raise ConfigError(
            part.origin,
            f"images of shape {pixels.shape}",
            "give images × height × width or images × channels × height × width, none empty",
        )
    if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
        raise ConfigError(
            part.origin,
            f"pixels from {pixels.min()} to {pixels.max()}",
            "give whole numbers from 0 to 255 as uint8, or numbers from 0 to 1",
        )
    wrong = labels[(labels < 0) | (labels >= config.classes)]
    if len(wrong):
        raise ConfigError(
            part.origin,
            f"label {wrong[0]}",
            f"labels must lie in 0 … {config.classes - 1}; fix the labels, or set data.classes",
        )
    if human is not None and (
        human.shape != (len(labels), config.classes)
        or not np.isfinite(human).all()
        or human.min() < 0
        or not (human.sum(1) > 0).all()
    ):
        raise ConfigError(
            part.origin,
            f"human of shape {human.shape}",
            f"give {len(labels)} × {config.classes} counts or probabilities, none negative, with a "
            "positive sum in every row",
        )


def _check_classes(train: Images, config: ImageConfig) -> None:
    present = set(train.labels.tolist())
    labels = range(min(config.classes, len(present) + 1))
    missing = [label for label in labels if label not in present]
    if missing:
        raise ConfigError(
            "data.classes",
            config.classes,
            f"no training example of class {', '.join(map(str, missing))}; give data of every "
            "class, more of it (data.train), or fewer classes",
        )


def _draw_splits(part: Labelled, config: ImageConfig, splits: Sequence[str]) -> list[Images]:
    """Takes the splits one after the other from one class-balanced random order."""
    sizes = [getattr(config, split) for split in splits]
    if sum(sizes) > len(part.labels):
        raise ConfigError(
            f"data.{splits[0]}",
            " + ".join(map(str, sizes)),
            f"{part.origin} holds {len(part.labels)} images; lower data.{', data.'.join(splits)}",
        )
    order, start, drawn = _balanced_order(part.labels, config.seed), 0, []
    for size in sizes:
        drawn.append(_images(part, order[start : start + size]))
        start += size
    return drawn


def _balanced_order(labels: Int[ndarray, " images"], seed: int) -> Int[ndarray, " images"]:
    """A random order in rounds; every class has one image in a round while it has any left."""
    order = np.random.default_rng(seed).permutation(len(labels))
    turn = np.empty_like(order)
    for label in np.unique(labels):
        places = np.flatnonzero(labels[order] == label)
        turn[places] = np.arange(len(places))
    return order[np.argsort(turn, kind="stable")]


def _images(part: Labelled, index: Int[ndarray, " some"]) -> Images:
    human = None
    if part.human is not None:
        counts = part.human[index].astype(np.float32)
        human = torch.from_numpy(counts / counts.sum(1, keepdims=True))
    return Images(
        torch.from_numpy(np.ascontiguousarray(part.pixels[index], dtype=np.float32)),
        torch.from_numpy(part.labels[index].astype(np.int64)),
        human,
    )
