"""Bounded cache, on this machine's disk, of the tensors of recorded steps."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import TypeAdapter

from dynolab.store import FileEntry, hash_file
from dynolab.store.manifest import hash_bytes
from dynolab.training.step_record import StepRecord

log = logging.getLogger(__name__)

TENSORS = "tensors.json"
"""Sizes and hashes of a record's safetensors files, in the place of these files."""

LIMIT_BYTES = 2**36

_FILES = TypeAdapter(dict[str, FileEntry])


def size_of_weights(record: Path) -> int:
    """Bytes of a record's weights before its step, which need not be there."""
    if not (record / TENSORS).exists():
        return (record / "before.safetensors").stat().st_size
    return _FILES.validate_json((record / TENSORS).read_bytes())["before.safetensors"].size


@dataclass(frozen=True)
class RecordCache:
    """Tensors of recorded steps: weights before and after, and the optimizer's.

    A record without its tensors names them by their hashes, so a step that is recorded again has
    either the same tensors or another name. The records that were used longest ago leave first.

    - `folder`: where they lie, a folder for each record.
    - `limit_bytes`: what all of them may take; a record that is larger is not kept.
    """

    folder: Path
    limit_bytes: int = LIMIT_BYTES

    def take(self, record: Path) -> None:
        """Moves the tensors of a record that `StepRecord.save` wrote here.

        Their sizes and hashes stay with the record.
        """
        tensors = sorted(record.glob("*.safetensors"))
        with ThreadPoolExecutor() as pool:
            entries = pool.map(hash_file, tensors)
        files = dict(zip((file.name for file in tensors), entries, strict=True))
        (record / TENSORS).write_bytes(_FILES.dump_json(files, indent=1))
        place, size = self._place(record), sum(entry.size for entry in files.values())
        if size <= self.limit_bytes and not place.exists():
            self._make_room(size)
            self._move([record / name for name in files], place)
        for name in files:
            (record / name).unlink(missing_ok=True)

    def load(self, record: Path) -> StepRecord | None:
        """Reads a record; None if its tensors are not here, or no longer what they were.

        A record that still has its own tensors is read from its folder.
        """
        if not (record / TENSORS).exists():
            return StepRecord.load(record)
        place = self._place(record)
        files = _FILES.validate_json((record / TENSORS).read_bytes())
        try:
            if all(hash_file(place / name) == entry for name, entry in files.items()):
                os.utime(place)
                return StepRecord.load(record, place)
        except (FileNotFoundError, NotADirectoryError):
            pass  # never here, or deleted by another process to make room
        shutil.rmtree(place, ignore_errors=True)
        return None

    def holds(self, record: Path) -> bool:
        """Whether a record's tensors are here, by their names; `load` compares their contents."""
        if not (record / TENSORS).exists():
            return True
        place = self._place(record)
        files = _FILES.validate_json((record / TENSORS).read_bytes())
        return all((place / name).exists() for name in files)

    def _place(self, record: Path) -> Path:
        return self.folder / hash_bytes((record / TENSORS).read_bytes())

    def _make_room(self, size: int) -> None:
        """Deletes records until one of `size` bytes fits."""
        uses = {path: _use(path) for path in self.folder.glob("*")}
        total = sum(taken for _, taken in uses.values())
        for path, (_, taken) in sorted(uses.items(), key=lambda item: item[1]):
            if total + size <= self.limit_bytes:
                return
            shutil.rmtree(path, ignore_errors=True)
            total -= taken

    def _move(self, files: Sequence[Path], place: Path) -> None:
        """Moves files into a new folder; a step that cannot be kept can still be replayed."""
        unfinished = self.folder / uuid4().hex
        try:
            unfinished.mkdir(parents=True)
            for file in files:
                shutil.move(file, unfinished / file.name)
            unfinished.rename(place)
        except OSError as error:
            log.warning("a recorded step could not be cached: %s", error)
            shutil.rmtree(unfinished, ignore_errors=True)


def _use(place: Path) -> tuple[int, int]:
    """When a folder was last used, and its bytes; zeros if another process has deleted it."""
    try:
        return place.stat().st_mtime_ns, sum(file.stat().st_size for file in place.iterdir())
    except FileNotFoundError:
        return 0, 0
