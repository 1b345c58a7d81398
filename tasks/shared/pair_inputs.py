"""What pages read of a comparison of preference trainings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynolab.results.arms import Start
from tasks.runtime.work import Work
from tasks.shared.page_helpers import input_folder
from tasks.shared.seeds import step_of

if TYPE_CHECKING:
    from dynolab.report.inputs.arms import PairRun


def start_of(start: Start, seed: int) -> str:
    """Name of the step whose model arms start from."""
    return {
        "base": f"base-{seed}",
        "sft": f"sft-{seed}",
        "extended": f"sft-extended-{seed}",
        "extended_half": f"sft-extended-half-{seed}",
    }[start]


def read_run(work: Work[Any], arm: str, seed: int) -> PairRun:
    """Reads the results of an arm with one seed; all but its training only if they are inputs."""
    from dynolab.report.inputs.arms import read_pair_run

    trained = work.input_folder(step_of(arm, seed))
    answers, judged, filtered = (
        input_folder(work, name)
        for name in (step_of(arm, seed, "said"), f"judge-{seed}", step_of(arm, seed, "filter"))
    )
    return read_pair_run(arm, trained, answers, judged, filtered)


def read_start(work: Work[Any], start: Start, seed: int) -> PairRun:
    """Reads the training of a model that arms start from."""
    from dynolab.report.inputs.arms import read_pair_run

    return read_pair_run("", work.input_folder(start_of(start, seed)), None, None)
