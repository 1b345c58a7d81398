"""Readers of labelled images: idx files, .npz arrays, Hub data sets."""

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

from dynolab.errors import ConfigError, reading

_UNSIGNED_BYTES = 0x08
_MAX_PIXEL = 255


@dataclass(frozen=True)
class Labelled:
    """Images and labels as read; their shapes may not match. `origin` names them in messages."""

    origin: str
    pixels: Float[ndarray, ...]
    labels: Int[ndarray, " labels"]
    human: Float[ndarray, "people classes"] | None = None


def read_idx(images: Path, labels: Path) -> Labelled:
    """Reads MNIST's idx files of images and of labels."""
    pixels = read_idx_array(images, 3)[:, None].astype(np.float32) / _MAX_PIXEL
    return Labelled(images.name, pixels, read_idx_array(labels, 1).astype(np.int64))


def read_idx_array(file: Path, dimensions: int) -> ndarray:
    """Reads an idx file of unsigned bytes, plain or compressed.

    Its header is two zero bytes, the type, the number of dimensions, and each size as a big-endian
    32-bit number (LeCun, *The MNIST database of handwritten digits*).

    **Raises:** `ConfigError` for a file of another format, and for one too short or too long.
    """
    header_size = 4 + 4 * dimensions
    with (
        reading("data.path", file.name, "download it again"),
        gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content,
    ):
        header = content.read(header_size)
        if header[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
            raise ConfigError(
                file.name,
                f"begins with {header[:4].hex()}",
                f"is not a {dimensions}-dimensional idx file of unsigned bytes; give MNIST's own",
            )
        if len(header) < header_size:
            raise ConfigError(file.name, f"{len(header)} bytes", "is truncated; download it again")
        shape = struct.unpack(f">{dimensions}I", header[4:])
        _check_numbers(file, math.prod(shape))
        numbers = content.read(math.prod(shape) + 1)
    if len(numbers) != math.prod(shape):
        raise ConfigError(
            file.name,
            f"{header_size + len(numbers)} bytes or more",
            f"its header of {header_size} bytes announces {' × '.join(map(str, shape))} more: the "
            "file is truncated or damaged; download it again",
        )
    return np.frombuffer(numbers, np.uint8).reshape(shape)


def _check_numbers(file: Path, numbers: int) -> None:
    """Raises before too much memory is allocated: a file of a few kB can announce any size."""
    if numbers > _MAX_NUMBERS:
        raise ConfigError(
            file.name,
            f"{numbers} numbers",
            f"at most {_MAX_NUMBERS} are held in memory at once; give fewer images",
        )


_MAX_NUMBERS = 2**30


def read_arrays(file: Path) -> Labelled:
    """Reads `images`, `labels` and, if present, `human` from a .npz file; never unpickles."""
    with (
        reading("data.path", file.name, "write a .npz file of plain arrays with np.savez"),
        zipfile.ZipFile(file) as members,
        np.load(file, allow_pickle=False) as archive,
    ):
        names = [name for name in ("images", "labels", "human") if name in archive.files]
        for name in names:
            # Counted as float32, which they become; no more than the announced size is unpacked.
            _check_numbers(file, members.getinfo(f"{name}.npy").file_size // 4)
        arrays = {name: archive[name] for name in names}
    for name in ("images", "labels"):
        if name not in arrays:
            raise ConfigError(file.name, None, f"has no array {name!r}; add it")
    for name, array in arrays.items():
        _check_numbers(file, array.size)
        if array.dtype.kind not in ("iu" if name == "labels" else "iuf"):
            raise ConfigError(
                file.name, f"{name} of {array.dtype}", "give real numbers, and integers as labels"
            )
    pixels, labels = arrays["images"], arrays["labels"]
    if labels.ndim != 1:
        raise ConfigError(file.name, f"labels of shape {labels.shape}", "give one label per image")
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    return Labelled(file.name, scaled(pixels), labels.astype(np.int64), arrays.get("human"))


def scaled(pixels: ndarray) -> ndarray:
    """Divides unsigned bytes by 255; leaves other numbers unchanged."""
    return pixels.astype(np.float32) / (_MAX_PIXEL if pixels.dtype == np.uint8 else 1)


def read_hub(name: str, commit: str, split: str) -> Labelled:
    """Reads a split of a Hub data set with one column of images and one of labels."""
    from datasets import ClassLabel, Image, load_dataset

    origin, field = f"{name} {split}", "data.hub_name"
    with reading(field, name, f"its split {split!r} must hold images and labels"):
        table = load_dataset(name, split=split, revision=commit)
        columns = [
            next(
                (column for column, of in table.features.items() if isinstance(of, kind)),
                None,
            )
            for kind in (Image, ClassLabel)
        ]
        if None in columns:
            raise ConfigError(
                field,
                name,
                f"its split {split!r} has columns {', '.join(table.features)}; give one with a "
                "column of images and a column of class labels",
            )
        # The array of an image with a palette would hold palette indices.
        pictures = (i.convert("RGB") if i.mode == "P" else i for i in table[columns[0]])
        arrays = [np.asarray(picture) for picture in pictures]
        if len({array.shape for array in arrays}) > 1:
            raise ConfigError(field, name, "its images differ in shape; give images of one size")
        pixels, labels = np.stack(arrays), np.array(table[columns[1]])
        # Colour images have their channels last, grey ones have no channel axis.
        pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
        return Labelled(origin, scaled(pixels), labels.astype(np.int64, casting="same_kind"))
