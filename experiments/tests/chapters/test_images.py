"""Images: every source gives what it holds, and refuses what cannot be trained on."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Image
from numpy import ndarray

from dynolab.errors import ConfigError
from experiments.chapters.images import (
    ImageConfig,
    Images,
    load_images,
    read_images,
    resolve_images,
    write_images,
)

SMALL = {"classes": 3, "train": 12, "validation": 3, "test": 6}


def idx(array: ndarray) -> bytes:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def mnist_folder(folder: Path, *, packed: bool = False, classes: int = 3, side: int = 9) -> Path:
    random = np.random.default_rng(0)
    for part, count in (("train", 30), ("t10k", 12)):
        images = random.integers(256, size=(count, side, side))
        labels = np.arange(count) % classes
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array)
            file = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            file.write_bytes(gzip.compress(content) if packed else content)
    return folder


def arrays(file: Path, **changes: ndarray) -> ImageConfig:
    random = np.random.default_rng(0)
    written = {"images": random.random((30, 8, 8)), "labels": np.arange(30) % 3} | changes
    np.savez(file, **written)
    return ImageConfig(source="arrays", path=str(file), **SMALL)


def same(images: Images, others: Images) -> bool:
    pixels = torch.equal(images.pixels, others.pixels)
    return pixels and torch.equal(images.labels, others.labels)


def test_digits_need_nothing_and_are_shared_out_evenly() -> None:
    splits = load_images(ImageConfig())
    train = splits.train
    assert (splits.classes, train.shape) == (10, (1, 8, 8))
    assert train.labels.bincount().tolist() == [100] * 10
    assert (len(splits.validation), len(splits.test)) == (200, 400)
    assert train.pixels.dtype == torch.float32
    assert (float(train.pixels.min()), float(train.pixels.max())) == (0.0, 1.0)


def test_no_image_stands_in_two_splits_and_the_seed_decides_which() -> None:
    config = ImageConfig(train=1_000, validation=300, test=497)
    splits = load_images(config)
    whole = torch.cat([splits.train.pixels, splits.validation.pixels, splits.test.pixels])
    from sklearn.datasets import load_digits

    given = torch.from_numpy(load_digits().images / 16).float()
    assert torch.equal(whole.flatten(1).sum(1).sort().values, given.flatten(1).sum(1).sort().values)
    assert same(splits.train, load_images(config).train)
    other = load_images(config.model_copy(update={"seed": 1}))
    assert not same(splits.train, other.train)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_plain_and_packed(tmp_path: Path, packed: bool) -> None:
    folder = mnist_folder(tmp_path, packed=packed)
    splits = load_images(ImageConfig(source="idx", path=str(folder), **SMALL))
    random = np.random.default_rng(0)
    written = random.integers(256, size=(30, 9, 9)), random.integers(256, size=(12, 9, 9))
    for split, source in ((splits.train, written[0]), (splits.test, written[1])):
        by_content = {
            (image / np.float32(255)).astype(np.float32).tobytes(): n % 3
            for n, image in enumerate(source)
        }
        for pixels, label in zip(split.pixels, split.labels, strict=True):
            assert by_content[pixels.numpy().tobytes()] == int(label)


def test_arrays_bring_what_people_say(tmp_path: Path) -> None:
    counts = np.eye(3)[np.arange(30) % 3] * 40 + 5
    config = arrays(tmp_path / "a.npz", human=counts)
    train = load_images(config).train
    assert train.shape == (1, 8, 8)
    assert train.human is not None
    assert torch.allclose(train.human.sum(1), torch.ones(12))
    assert torch.equal(train.human.argmax(1), train.labels)
    coloured = np.random.default_rng(1).integers(256, size=(30, 3, 8, 8)).astype(np.uint8)
    train = load_images(arrays(tmp_path / "b.npz", images=coloured)).train
    assert train.shape == (3, 8, 8)
    assert float(train.pixels.max()) <= 1.0


def test_a_source_is_pinned_to_its_content(tmp_path: Path) -> None:
    config = arrays(tmp_path / "a.npz")
    pinned = resolve_images(config)
    assert pinned.revision is not None
    assert resolve_images(pinned) == pinned
    arrays(tmp_path / "a.npz", labels=(np.arange(30) + 1) % 3)
    with pytest.raises(ConfigError, match=r"data\.revision"):
        resolve_images(pinned)
    folder = ImageConfig(source="idx", path=str(mnist_folder(tmp_path)), **SMALL)
    assert resolve_images(folder).revision != pinned.revision


def test_splits_are_read_as_they_were_written(tmp_path: Path) -> None:
    splits = load_images(arrays(tmp_path / "a.npz", human=np.eye(3)[np.arange(30) % 3]))
    write_images(splits, tmp_path / "images.safetensors")
    read = read_images(tmp_path / "images.safetensors")
    assert read.classes == 3
    for name in ("train", "validation", "test"):
        images, again = getattr(splits, name), getattr(read, name)
        assert same(images, again)
        assert torch.equal(images.human, again.human)


ARRAYS = {
    "labels too large": ({"labels": np.arange(30)}, "label 3"),
    "labels below zero": ({"labels": np.arange(30) - 1}, "label -1"),
    "labels that are no whole numbers": ({"labels": np.ones(30) / 2}, "labels of float64"),
    "labels in rows": ({"labels": np.ones((30, 2), dtype=int)}, r"labels of shape \(30, 2\)"),
    "labels too few": ({"labels": np.arange(29) % 3}, "30 images and 29 labels"),
    "a class without examples": ({"labels": np.arange(30) % 2}, "no training example of class 2"),
    "flat images": ({"images": np.ones((30, 64))}, r"images of shape \(30, 64\)"),
    "empty images": ({"images": np.ones((30, 8, 0))}, "none empty"),
    "pixels above one": ({"images": np.full((30, 8, 8), 7.0)}, "pixels from 7.0"),
    "pixels that are no numbers": ({"images": np.full((30, 8, 8), np.nan)}, "pixels from nan"),
    "images of text": ({"images": np.full((30, 8, 8), "x")}, "images of <U1"),
    "people of other classes": ({"human": np.ones((30, 4))}, r"human of shape \(30, 4\)"),
    "people who said nothing": ({"human": np.zeros((30, 3))}, "positive sum in every row"),
    "complex images": ({"images": np.ones((30, 8, 8)) * 1j}, "images of complex128"),
    "objects": ({"images": np.array([{}] * 30)}, "write a .npz file of plain arrays"),
}


@pytest.mark.parametrize("case", ARRAYS)
def test_arrays_that_cannot_be_trained_on_are_refused(tmp_path: Path, case: str) -> None:
    changes, message = ARRAYS[case]
    with pytest.raises(ConfigError, match=message):
        load_images(arrays(tmp_path / "a.npz", **changes))


@pytest.mark.parametrize("size", [0, 3, 10, 100, -1])
@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_an_idx_file_cut_short_is_refused(tmp_path: Path, file: str, size: int) -> None:
    folder = mnist_folder(tmp_path)
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: min(size, len(content) - 1)])
    with pytest.raises(ConfigError, match=file):
        load_images(ImageConfig(source="idx", path=str(folder), **SMALL))


def test_a_packed_file_cut_short_is_refused(tmp_path: Path) -> None:
    folder = mnist_folder(tmp_path, packed=True)
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_images(ImageConfig(source="idx", path=str(folder), **SMALL))


def test_files_of_different_sets_are_refused(tmp_path: Path) -> None:
    folder = mnist_folder(tmp_path)
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((12, 5, 5))))
    with pytest.raises(ConfigError, match="different shapes"):
        load_images(ImageConfig(source="idx", path=str(folder), **SMALL))
    (folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(ConfigError, match="has no t10k-images-idx3-ubyte"):
        load_images(ImageConfig(source="idx", path=str(folder), **SMALL))


def hub_folder(folder: Path, pictures: list[Any]) -> ImageConfig:
    """A data set as the Hub holds it; its folder stands for its name, a commit for the Hub."""
    labels = [n % 3 for n in range(len(pictures))]
    kinds = Features({"img": Image(), "label": ClassLabel(names=["a", "b", "c"])})
    for split in ("train", "test"):
        rows = Dataset.from_dict({"img": pictures, "label": labels}, features=kinds)
        rows.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return ImageConfig(source="hub", hub_name=str(folder), revision="0" * 40, **SMALL)


@pytest.mark.parametrize("shape", [(9, 9), (9, 9, 3)])
def test_data_sets_of_the_hub_are_read(shape: tuple[int, ...], tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pictures = [random.integers(256, size=shape, dtype=np.uint8) for _ in range(30)]
    splits = load_images(hub_folder(tmp_path, pictures))
    assert splits.train.shape == (shape[2] if len(shape) == 3 else 1, 9, 9)
    assert len(splits.train) == 12 and splits.train.labels.bincount().tolist() == [4, 4, 4]
    held = {np.atleast_3d(picture).transpose(2, 0, 1).tobytes() for picture in pictures}
    read = (splits.train.pixels * 255).round().to(torch.uint8).numpy()
    assert {image.tobytes() for image in read} <= held


def test_pictures_with_a_palette_are_read_as_their_colours(tmp_path: Path) -> None:
    picture = PIL.Image.fromarray(np.full((9, 9), 1, np.uint8), mode="P")
    picture.putpalette([0, 0, 0, 10, 20, 30])
    splits = load_images(hub_folder(tmp_path, [picture] * 30))
    assert (splits.train.pixels[0, :, 0, 0] * 255).round().tolist() == [10, 20, 30]


def test_data_sets_of_the_hub_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    sizes = [np.zeros((5 + n % 2, 5), np.uint8) for n in range(6)]
    with pytest.raises(ConfigError, match=r"data\.hub_name = .*its images differ in shape"):
        load_images(hub_folder(tmp_path / "sizes", sizes))
    none = tmp_path / "none"
    Dataset.from_dict({"text": ["a", "b"]}).to_parquet(none / "data" / "train-0-of-1.parquet")
    with pytest.raises(ConfigError, match="has columns text; give one with a column of images"):
        load_images(ImageConfig(source="hub", hub_name=str(none), revision="0" * 40, **SMALL))


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds 1797 images"):
        load_images(ImageConfig(train=1_500))
    with pytest.raises(ConfigError, match=r"data\.path"):
        ImageConfig(source="idx")
    with pytest.raises(ConfigError, match=r"data\.hub_name"):
        ImageConfig(hub_name="ylecun/mnist")
    with pytest.raises(ConfigError, match="no such file"):
        load_images(ImageConfig(source="arrays", path=str(tmp_path / "none.npz")))
