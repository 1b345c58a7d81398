"""What a program did on the pretended GPU that a real one would refuse, wait for or not repeat."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
OWN = Path(__file__).parent


@dataclass
class Log:
    """Counts by operation and line of the project, such as `nonzero at dynolab/data/x.py:12`."""

    operations: int = 0
    mixed: Counter[str] = field(default_factory=Counter)
    """Operations on tensors of two devices, which a real GPU refuses."""
    copies: Counter[str] = field(default_factory=Counter)
    """Transfers between host and device for which the host waits."""
    waits: Counter[str] = field(default_factory=Counter)
    """All operations for which the host waits until the device is done, with the copies."""
    unordered: Counter[str] = field(default_factory=Counter)
    """Operations that add on a GPU in an order which differs from run to run."""

    def clear(self) -> None:
        """Forgets everything."""
        self.operations = 0
        for counts in (self.mixed, self.copies, self.waits, self.unordered):
            counts.clear()

    def noted(self) -> dict[str, Any]:
        """All counts, as JSON takes them."""
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }

    def mix(self, what: str) -> None:
        """Notes tensors of two devices."""
        self.mixed[f"{what} at {place()}"] += 1

    def wait(self, what: str) -> None:
        """Notes that the host waits."""
        self.waits[f"{what} at {place()}"] += 1

    def copy(self, what: str) -> None:
        """Notes that the host waits for a transfer."""
        self.wait(what)
        self.copies[f"{what} at {place()}"] += 1

    def add_unordered(self, what: str) -> None:
        """Notes a sum of unknown order."""
        self.unordered[f"{what} at {place()}"] += 1


LOG = Log()


def place() -> str:
    """The innermost line of the project that is running, or of a library that it called.

    In a backward pass this is the line that started it.
    """
    frame, library = sys._getframe(1), None
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if frame.f_code.co_name == "__torch_function__":
            pass  # passes calls on
        elif file.is_relative_to(PROJECT) and "site-packages" not in file.parts:
            if file.parent != OWN or file.name.startswith("paths"):
                own = f"{file.relative_to(PROJECT)}:{frame.f_lineno}"
                return own if library is None else f"{own} (in {library})"
        elif library is None and "site-packages" in file.parts and "torch" not in file.parts:
            within = file.parts[file.parts.index("site-packages") + 1 :]
            library = f"{'/'.join(within)}:{frame.f_lineno}"
        frame = frame.f_back
    return library or "unknown"
