"""Images as their sources hold them: idx files, arrays, data sets of the Hub."""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.data.images.config import ImageConfig, hub_commit
from dynolab.errors import ConfigError, reading

_UNSIGNED_BYTES = 0x08
_MOST_PIXELS = 255


@dataclass(frozen=True)
class Labelled:
    """What a source holds, unchecked: shapes may not fit. `origin` is its name in messages."""

    origin: str
    pixels: Float[ndarray, ...]
    labels: Int[ndarray, " labels"]
    human: Float[ndarray, "people classes"] | None = None


def read_idx(images: Path, labels: Path) -> Labelled:
    """MNIST's idx files of images and of labels."""
    pixels = read_idx_array(images, 3)[:, None].astype(np.float32) / _MOST_PIXELS
    return Labelled(images.name, pixels, read_idx_array(labels, 1).astype(np.int64))


def read_idx_array(file: Path, dimensions: int) -> ndarray:
    """Unsigned bytes of an idx file, plain or compressed.

    Its head is two zero bytes, the type, the number of dimensions, and each size as a big-endian
    32-bit number (LeCun, *The MNIST database of handwritten digits*).

    **Raises:** `ConfigError` for another kind of file, and for one cut short or too long.
    """
    head = 4 + 4 * dimensions
    with (
        reading("data.path", file.name, "fetch it again"),
        gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content,
    ):
        start = content.read(head)
        if start[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
            raise ConfigError(
                file.name,
                f"begins with {start[:4].hex()}",
                f"is no idx file of unsigned bytes in {dimensions} dimensions; give MNIST's own",
            )
        if len(start) < head:
            raise ConfigError(file.name, f"{len(start)} bytes", "is cut short; fetch it again")
        shape = struct.unpack(f">{dimensions}I", start[4:])
        _check_numbers(file, math.prod(shape))
        numbers = content.read(math.prod(shape) + 1)
    if len(numbers) != math.prod(shape):
        raise ConfigError(
            file.name,
            f"{head + len(numbers)} bytes or more",
            f"its head promises {' × '.join(map(str, shape))} and is of {head} itself: it is cut "
            "short or damaged; fetch it again",
        )
    return np.frombuffer(numbers, np.uint8).reshape(shape)


def _check_numbers(file: Path, numbers: int) -> None:
    """Refuses what no memory holds before any is taken: a file of some kB can promise it."""
    if numbers > _MOST_NUMBERS:
        raise ConfigError(
            file.name,
            f"{numbers} numbers",
            f"are held in memory at once, {_MOST_NUMBERS} at most; give fewer images",
        )


_MOST_NUMBERS = 2**30


def read_arrays(file: Path) -> Labelled:
    """Arrays `images`, `labels` and perhaps `human` of a .npz file; nothing in it can run code."""
    with (
        reading("data.path", file.name, "write a .npz file of plain arrays by np.savez"),
        zipfile.ZipFile(file) as members,
        np.load(file, allow_pickle=False) as there,
    ):
        names = [name for name in ("images", "labels", "human") if name in there.files]
        for name in names:
            # As float32, which they become. What is longer than promised is not unpacked.
            _check_numbers(file, members.getinfo(f"{name}.npy").file_size // 4)
        arrays = {name: there[name] for name in names}
    for name in ("images", "labels"):
        if name not in arrays:
            raise ConfigError(file.name, None, f"holds no array {name!r}")
    for name, array in arrays.items():
        _check_numbers(file, array.size)
        if array.dtype.kind not in ("iu" if name == "labels" else "iuf"):
            raise ConfigError(
                file.name, f"{name} of {array.dtype}", "give real numbers, whole as labels"
            )
    pixels, labels = arrays["images"], arrays["labels"]
    if labels.ndim != 1:
        raise ConfigError(file.name, f"labels of shape {labels.shape}", "give one label an image")
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    return Labelled(file.name, scaled(pixels), labels.astype(np.int64), arrays.get("human"))


def scaled(pixels: ndarray) -> ndarray:
    """Unsigned bytes as shares of 255; other numbers as they are."""
    return pixels.astype(np.float32) / (_MOST_PIXELS if pixels.dtype == np.uint8 else 1)


def read_hub(config: ImageConfig, split: str) -> Labelled:
    """A split of a Hub data set with one column of images and one of labels."""
    from datasets import ClassLabel, Image, load_dataset

    origin, field = f"{config.hub_name} {split}", "data.hub_name"
    with reading(field, config.hub_name, f"its split {split!r} must hold images and labels"):
        table = load_dataset(config.hub_name, split=split, revision=hub_commit(config))
        columns = [
            next((name for name, kept in table.features.items() if isinstance(kept, kind)), None)
            for kind in (Image, ClassLabel)
        ]
        if None in columns:
            raise ConfigError(
                field,
                config.hub_name,
                f"its split {split!r} has columns {', '.join(table.features)}; a column of images "
                "and one of class labels are needed",
            )
        # Of a picture with a palette the array would hold the colours' numbers.
        pictures = (i.convert("RGB") if i.mode == "P" else i for i in table[columns[0]])
        arrays = [np.asarray(picture) for picture in pictures]
        if len({array.shape for array in arrays}) > 1:
            raise ConfigError(
                field, config.hub_name, "its images differ in shape; give ones of one size"
            )
        pixels, labels = np.stack(arrays), np.array(table[columns[1]])
        # Pictures have their colours last, grey ones no such axis.
        pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
        return Labelled(origin, scaled(pixels), labels.astype(np.int64, casting="same_kind"))
