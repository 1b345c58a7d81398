"""A force map on disk: a manifest, the matrix, and a record of the tiles that are complete."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dynolab.errors import ConfigError, CorruptData

MANIFEST, MATRIX, PARTS, TILES = "manifest.json", "force.bin", "blocks.bin", "tiles.jsonl"

Bounds = tuple[int, int, int, int]
"""First and last-plus-one row, first and last-plus-one column."""


class MapFolder:
    """A matrix that is filled tile by tile and can be continued after a kill.

    `manifest.json` describes the map and is written first; a tile's numbers are on disk before its
    line with their hash is added to `tiles.jsonl`. A tile counts as missing if its line is cut
    short or its numbers do not match their hash. Where the manifest names `blocks`, their parts of
    the matrix are kept beside it, in that order.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], mode: Literal["r", "r+"]) -> None:
        self.folder, self.manifest = folder, manifest
        self.matrix: np.memmap = np.memmap(
            folder / MATRIX, dtype=manifest["dtype"], mode=mode, shape=tuple(manifest["shape"])
        )
        blocks = manifest.get("blocks")
        self.parts: np.memmap | None = blocks and np.memmap(
            folder / PARTS, dtype=manifest["dtype"], mode=mode, shape=_parts_shape(manifest)
        )
        self.done = self._complete_tiles()

    @classmethod
    def begin(cls, folder: Path, manifest: dict[str, Any]) -> MapFolder:
        """Starts a map, or continues the same one; rejects a folder with another map.

        **Raises:** `ConfigError` if the folder's map has another fingerprint.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MANIFEST).exists():
            existing = _read_manifest(folder)
            if existing["fingerprint"] != manifest["fingerprint"]:
                raise ConfigError(
                    "folder",
                    str(folder),
                    "contains a force map of other inputs; give another folder or remove this one",
                )
            _end_last_line(folder / TILES)
            return cls(folder, existing, "r+")
        shapes = {MATRIX: manifest["shape"]}
        if manifest.get("blocks"):
            shapes[PARTS] = _parts_shape(manifest)
        for name, shape in shapes.items():
            with (folder / name).open("wb") as file:
                file.truncate(math.prod(shape) * np.dtype(manifest["dtype"]).itemsize)
        (folder / TILES).touch()
        partial = folder / f"{MANIFEST}.partial"
        partial.write_text(json.dumps(manifest, indent=1))
        partial.replace(folder / MANIFEST)
        return cls(folder, manifest, "r+")

    @classmethod
    def join(cls, folder: Path) -> MapFolder:
        """A map that another rank has begun, to be filled beside it."""
        return cls(folder, _read_manifest(folder), "r+")

    @classmethod
    def open(cls, folder: Path) -> MapFolder:
        """A complete map.

        **Raises:** `ConfigError` where there is none, `CorruptData` where it is incomplete.
        """
        if not (folder / MANIFEST).exists():
            raise ConfigError(
                "folder", str(folder), "contains no force map; give a folder with one"
            )
        opened = cls(folder, _read_manifest(folder), "r")
        if not opened.done.all():
            raise CorruptData(
                f"{folder}: {opened.done.mean():.0%} of the force map is complete; the rest was "
                "interrupted or does not match its hash: call force_map again with this folder"
            )
        return opened

    def holds(self, bounds: Bounds) -> bool:
        """Whether the map is complete within these bounds."""
        top, bottom, first, last = bounds
        return bool(self.done[top:bottom, first:last].all())

    def write(self, bounds: Bounds, values: np.ndarray, parts: np.ndarray | None = None) -> None:
        """Writes a tile with its blocks' parts and then, once it is on disk, its record.

        Complete numbers are not overwritten: a run with other tiles, which round differently, may
        have written them, and their hash is recorded.
        """
        top, bottom, first, last = bounds
        missing = ~self.done[top:bottom, first:last]
        self.matrix[top:bottom, first:last][missing] = values[missing]
        self.matrix.flush()
        if self.parts is not None and parts is not None:
            self.parts[:, top:bottom, first:last][:, missing] = parts[:, missing]
            self.parts.flush()
        with (self.folder / TILES).open("a") as file:
            file.write(json.dumps({"bounds": bounds, "sha256": self._hash(bounds)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.done[top:bottom, first:last] = True

    def _complete_tiles(self) -> np.ndarray:
        done = np.zeros(self.matrix.shape, dtype=bool)
        text = (self.folder / TILES).read_text() if (self.folder / TILES).exists() else ""
        for line in text.split("\n"):
            try:
                tile = json.loads(line)
                (top, bottom, first, last), recorded = tile["bounds"], tile["sha256"]
            except (ValueError, KeyError, TypeError):
                continue
            if recorded == self._hash((top, bottom, first, last)):
                done[top:bottom, first:last] = True
        return done

    def _hash(self, bounds: Bounds) -> str:
        top, bottom, first, last = bounds
        digest = hashlib.sha256(self.matrix[top:bottom, first:last].tobytes())
        if self.parts is not None:
            digest.update(self.parts[:, top:bottom, first:last].tobytes())
        return digest.hexdigest()


def _parts_shape(manifest: dict[str, Any]) -> tuple[int, ...]:
    return len(manifest["blocks"]), *manifest["shape"]


def _end_last_line(file: Path) -> None:
    """Ends a line that a kill cut short, so that the next one starts on a new line."""
    with file.open("ab+") as tiles:
        if tiles.tell():
            tiles.seek(-1, os.SEEK_END)
            if tiles.read() != b"\n":
                tiles.write(b"\n")


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        if {"fingerprint", "dtype", "shape"} <= set(manifest):
            return dict(manifest)
    except (ValueError, TypeError):
        pass
    raise CorruptData(f"{folder / MANIFEST} is not a force map's manifest; remove the folder")
