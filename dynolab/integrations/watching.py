"""What watches a training without ever ending it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from transformers import TrainerCallback

from dynolab import distributed

Made = TypeVar("Made")

_log = logging.getLogger(__name__)


class Watching(TrainerCallback):
    """A callback that gives up, with one warning, where something fails on any rank."""

    off = ""
    """Why it has given up; empty while it has not."""

    def attempt(self, work: Callable[[], Made]) -> Made | None:
        """Does some work on all ranks; None where it fails on one, and from then on.

        **Arguments:** `work`: exchanges something between ranks only where nothing is expected to
        fail before it does, so that no rank waits for one that has failed.
        """
        if self.off:
            return None
        made, reason = None, ""
        try:
            made = work()
        except Exception as error:  # nobody's training ends by its being watched
            reason = f"{type(error).__name__}: {error}"
        try:
            reason = next(filter(None, distributed.gather(reason)), "")
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}"
        if not reason:
            return made
        self.off = reason
        self.give_up()
        if distributed.rank() == 0:
            name = type(self).__name__
            _log.warning("%s is off, and training goes on without it: %s", name, reason)
        return None

    def give_up(self) -> None:
        """Lets go of what was meant for further work."""
