"""Step names in a comparison of preference trainings, and how pages read their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynolab.results.arms import Start
from tasks.runtime.work import Work
from tasks.shared.page_helpers import input_folder

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


def data_of(seed: int) -> str:
    """Name of the step whose rows a seed's arms train on and watch."""
    return f"data-{seed}"


def training_of(arm: str, seed: int) -> str:
    """Name of the step that trains an arm."""
    return f"{arm}-{seed}"


def filter_of(arm: str, seed: int) -> str:
    """Name of the step that leaves an arm's pairs out."""
    return f"{training_of(arm, seed)}-filter"


def answers_of(arm: str, seed: int) -> str:
    """Name of the step that samples answers of an arm's model."""
    return f"{arm}-{seed}-said"


def judge_of(seed: int) -> str:
    """Name of the step that judges all arms' answers against the baseline's."""
    return f"judge-{seed}"


def read_run(work: Work[Any], arm: str, seed: int) -> PairRun:
    """Reads the results of an arm with one seed; all but its training only if they are inputs."""
    from dynolab.report.inputs.arms import read_pair_run

    trained = work.input_folder(training_of(arm, seed))
    answers, judged, filtered = (
        input_folder(work, name)
        for name in (answers_of(arm, seed), judge_of(seed), filter_of(arm, seed))
    )
    return read_pair_run(arm, trained, answers, judged, filtered)


def read_start(work: Work[Any], start: Start, seed: int) -> PairRun:
    """Reads the training of a model that arms start from."""
    from dynolab.report.inputs.arms import read_pair_run

    return read_pair_run("", work.input_folder(start_of(start, seed)), None, None)
