"""A store in this process, and a chapter's flow run on it stage by stage."""

from __future__ import annotations

from tests.flows.in_process import InProcess


class Chapters(InProcess):
    """The platform, and what was run on it."""

    run = InProcess.run_steps
