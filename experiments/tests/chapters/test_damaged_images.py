"""Whatever stands in a file of images: it is read, or refused with one typed error."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings, strategies as st

from dynolab.errors import ConfigError
from experiments.chapters import image_files
from experiments.chapters.image_files import read_arrays, read_hub, read_idx_array
from experiments.chapters.images import ImageConfig, load_images, read_images, resolve_images
from tests.data.test_damaged import Broken, damaged


def array_bytes(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def idx_bytes(*shape: int, content: bytes = b"") -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + content


ARRAYS = array_bytes(images=np.ones((4, 2, 2)), labels=np.arange(4))
IDX = idx_bytes(4, 2, 2, content=bytes(16))
READERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "images-idx3": (lambda file: read_idx_array(file, 3), IDX),
    "images-idx3.gz": (lambda file: read_idx_array(file, 3), gzip.compress(IDX)),
    "images.npz": (read_arrays, ARRAYS),
    "images.safetensors": (read_images, b"\x08\0\0\0\0\0\0\0{}      "),
}


@pytest.mark.parametrize("name", READERS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
@pytest.mark.filterwarnings("ignore")
def test_any_bytes_are_a_value_or_a_typed_error(
    name: str, tmp_path: Path, data: st.DataObject
) -> None:
    read, whole = READERS[name]
    (tmp_path / name).write_bytes(data.draw(damaged(whole)))
    try:
        read(tmp_path / name)
    except ConfigError as error:
        assert name in str(error)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_a_typed_error(name: str, tmp_path: Path) -> None:
    read, _ = READERS[name]
    for path in (tmp_path, tmp_path / "none" / name):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(path.with_suffix(Path(name).suffix))


@pytest.mark.parametrize("error", [Broken("damaged"), KeyError("x"), RecursionError()])
def test_whatever_reading_the_hub_raises_names_the_data_set(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> Dataset:
        raise error

    monkeypatch.setattr("datasets.load_dataset", load)
    with pytest.raises(ConfigError, match=r"data\.hub_name = 'a/b': cannot be read"):
        read_hub("a/b", "0" * 40, "train")


def test_a_file_that_cannot_be_hashed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images.npz"
    images.touch()

    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"cannot be read .PermissionError: not yours"):
        resolve_images(ImageConfig(source="arrays", path=str(images)))


def test_images_that_promise_too_much_take_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "images-idx3.gz"
    file.write_bytes(gzip.compress(idx_bytes(2**32 - 1, 2**32 - 1, 9)))
    with pytest.raises(ConfigError, match="are held in memory at once"):
        read_idx_array(file, 3)
    file.write_bytes(gzip.compress(idx_bytes(2, 2, 2, content=bytes(10**6))))
    with pytest.raises(ConfigError, match="its header of 16 bytes announces 2 × 2 × 2 more"):
        read_idx_array(file, 3)
    monkeypatch.setattr(image_files, "_MAX_NUMBERS", 2**10)
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("images.npy", bytes(10**6))  # never looked into
    with pytest.raises(ConfigError, match=r"250000 numbers'.*are held in memory at once"):
        read_arrays(bomb)


def test_arrays_of_a_shape_beyond_their_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "images.npz"
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (10**15,)}
    )
    with zipfile.ZipFile(file, "w") as members:
        members.writestr("labels.npy", head.getvalue() + bytes(10))
    with pytest.raises(ConfigError, match=r"images\.npz.*cannot be read"):
        read_arrays(file)


def test_classes_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "images.npz").write_bytes(array_bytes(images=np.ones((9, 2, 2)), labels=[0] * 9))
    sizes = {"train": 2, "validation": 1, "test": 1}
    config = ImageConfig(
        source="arrays", path=str(tmp_path / "images.npz"), classes=10**12, **sizes
    )
    with pytest.raises(ConfigError, match=r"data\.classes = 1000000000000"):
        load_images(config)


def test_pictures_that_cannot_be_decoded_name_the_data_set(tmp_path: Path) -> None:
    from datasets import ClassLabel, Features, Image

    kinds = Features({"img": Image(), "label": ClassLabel(names=["a", "b"])})
    rows = {"img": [{"bytes": b"no picture", "path": None}] * 2, "label": [0, 1]}
    for split in ("train", "test"):
        file = tmp_path / "data" / f"{split}-00000-of-00001.parquet"
        Dataset.from_dict(rows, features=kinds).to_parquet(file)
    with pytest.raises(ConfigError, match=r"data\.hub_name.*cannot be read \(Unidentified"):
        read_hub(str(tmp_path), "0" * 40, "train")
