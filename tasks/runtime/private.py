"""Files that hold passwords: nobody but their owner can read them, not even for a moment."""

from __future__ import annotations

import os
from pathlib import Path


def write_private(file: Path, content: str) -> None:
    """Writes a file as a whole, readable by its owner alone."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(content)
    part.replace(file)
