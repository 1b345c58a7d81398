"""On-disk cache of answers, keyed by the content of the request."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, ValidationError

from dynolab.data.rows import Row, read_rows, write_rows
from dynolab.endpoint.config import Answered

log = logging.getLogger(__name__)


class KeptAnswer(Row):
    """An answer with the key of its request."""

    key: str = Field(pattern="^[0-9a-f]{64}$")
    answer: Answered


class AnswerCache:
    """A folder of answers, one file each, written atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: str) -> Answered | None:
        """The answer stored under a key; None if there is none or it cannot be read."""
        file = self._file(key)
        try:
            return Answered.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            log.warning("cannot read the cached answer %s; it will be asked for again", file.name)
            return None

    def put(self, key: str, answer: Answered) -> None:
        """Stores an answer."""
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
        unfinished.write_text(answer.model_dump_json(), encoding="utf-8")
        unfinished.replace(file)

    def save(self, keys: Iterable[str], file: Path) -> None:
        """Writes the answers stored under some keys to one file."""
        cached = ((key, self.get(key)) for key in sorted(keys))
        rows = (KeptAnswer(key=key, answer=answer) for key, answer in cached if answer is not None)
        write_rows(file, rows)

    def load(self, file: Path) -> None:
        """Stores the answers of a file that `save` wrote."""
        for row in read_rows(file, KeptAnswer):
            self.put(row.key, row.answer)

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
