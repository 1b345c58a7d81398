"""The lines of a training's metrics file, which grows and may be replaced while it is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import islice, takewhile
from pathlib import Path

from pydantic import ValidationError

from dynolab.errors import unreadable
from dynolab.results.study import MetricsLine

log = logging.getLogger(__name__)


class Tail:
    """Each complete line of a file once; a file that took its place is read from its beginning.

    A resuming rank program begins with the checkpoint's copy of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._inode, self._offset = path, -1, 0

    @property
    def has_more(self) -> bool:
        """Whether the file has bytes that were not read."""
        status = self.path.stat()
        return self._begin(status) < status.st_size

    def batches(self, most: int) -> Iterator[list[MetricsLine]]:
        """Lines that were not read, `most` at a time; a line that is still being written waits.

        A batch counts as read when the next is asked for, so that it comes again after an error.
        """
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            self._inode, self._offset = status.st_ino, self._begin(status)
            stream.seek(self._offset)
            # Up to a line without its end, which is still being written.
            complete = takewhile(lambda line: line.endswith(b"\n"), stream)
            while texts := list(islice(complete, most)):
                yield list(_parsed(texts))
                # Only now, when the caller has come back for more.
                self._offset += sum(map(len, texts))

    def _begin(self, status: os.stat_result) -> int:
        """Where to go on: 0 in a file that is another, or shorter than what was read."""
        is_same = status.st_ino == self._inode and self._offset <= status.st_size
        return self._offset if is_same else 0


def _parsed(texts: list[bytes]) -> Iterator[MetricsLine]:
    for text in texts:
        try:
            yield MetricsLine.model_validate_json(text)
        except ValidationError as error:
            log.warning("skipping a line of metrics: it %s", unreadable(error))
