"""Images as their sources hold them: idx files, arrays, data sets of the Hub."""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from dynolab.data.image_config import ImageConfig, hub_commit
from dynolab.errors import ConfigError

_UNSIGNED_BYTES = 0x08
_MOST_PIXELS = 255


@dataclass(frozen=True)
class Labelled:
    """What a source holds, unchecked; `origin` is its name in messages."""

    origin: str
    pixels: Float[ndarray, "images channels height width"]
    labels: Int[ndarray, images]
    human: Float[ndarray, "images classes"] | None = None


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
    content = _bytes(file)
    head = 4 + 4 * dimensions
    if content[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
        raise ConfigError(
            file.name, f"begins with {content[:4].hex()}",
            f"is no idx file of unsigned bytes in {dimensions} dimensions; give MNIST's own",
        )  # fmt: skip
    if len(content) < head:
        raise ConfigError(file.name, f"{len(content)} bytes", "is cut short; fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:head])
    promised = head + math.prod(shape)
    if len(content) != promised:
        raise ConfigError(
            file.name, f"{len(content)} bytes",
            f"its head promises {promised}, {' × '.join(map(str, shape))} and {head} of the "
            "head: it is cut short or damaged; fetch it again",
        )  # fmt: skip
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _bytes(file: Path) -> bytes:
    content = file.read_bytes()
    if file.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            file.name, f"{len(content)} bytes", f"cannot be unpacked ({error}); fetch it again"
        ) from error


def read_arrays(file: Path) -> Labelled:
    """Arrays `images`, `labels` and perhaps `human` of a .npz file; nothing in it can run code."""
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = {
                name: found[name] for name in ("images", "labels", "human") if name in found.files
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError) as error:
        raise ConfigError(
            file.name, type(error).__name__, "is no .npz file of plain arrays; write it by np.savez"
        ) from error
    for name in ("images", "labels"):
        if name not in arrays:
            raise ConfigError(file.name, None, f"holds no array {name!r}")
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.integer if name == "labels" else np.number):
            raise ConfigError(
                file.name, f"{name} of {array.dtype}", "give numbers, whole as labels"
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

    try:
        table = load_dataset(config.hub_name, split=split, revision=hub_commit(config))
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            "data.hub_name", config.hub_name, f"its split {split!r} cannot be loaded: {reason}"
        ) from error
    columns = [
        next((name for name, one in table.features.items() if isinstance(one, kind)), None)
        for kind in (Image, ClassLabel)
    ]
    if None in columns:
        raise ConfigError(
            "data.hub_name", config.hub_name,
            f"its split {split!r} has columns {', '.join(table.features)}; a column of images and "
            "one of class labels are needed",
        )  # fmt: skip
    images, labels = columns
    arrays = [np.asarray(image) for image in table[images]]
    if len({one.shape for one in arrays}) > 1:
        raise ConfigError(
            "data.hub_name", config.hub_name, "its images differ in shape; give ones of one size"
        )
    pixels = np.stack(arrays)
    # Pictures have their colours last, grey ones no such axis.
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, -1, 1)
    return Labelled(f"{config.hub_name} {split}", scaled(pixels), np.array(table[labels]))
