from __future__ import annotations

import shlex
from pathlib import Path

from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.grpo import GRPOConfig
from flows.forces import ForcesParameters
from flows.parameters import load_parameters
from tasks.report import map_command
from tasks.runtime.work import StageResult

BUILTIN = Path(__file__).parents[2] / "deploy" / "studies" / "forces_builtin.yaml"


def result(stage: str, digit: str) -> StageResult:
    key = digit * 64
    return StageResult(
        stage=stage,
        key=key,
        address=f"stages/{stage}/{key}",
        digest=key,
        metrics={},
        mlflow_run_id=None,
        cached=True,
    )


INPUTS = {
    name: result(name, digit) for name, digit in (("data", "a"), ("sft", "b"), ("preference", "c"))
}


def test_the_reports_command_is_an_analysis_of_that_study() -> None:
    """As `dynolab forces` reads it: over its own example's settings."""
    words = shlex.split(map_command(DPOConfig(beta=0.3), INPUTS, 2e-4))
    assert words[:2] == ["dynolab", "forces"]
    assert set(words[2::2]) == {"--set"}
    changes = [*words[3::2], 'analysis.pair_ids=["train-0007"]']
    found = load_parameters(ForcesParameters, BUILTIN, changes)
    assert found.study is None
    assert found.data_result == "data/" + "a" * 12
    assert {label: checkpoint.result for label, checkpoint in found.checkpoints.items()} == {
        "before": "sft/" + "b" * 12,
        "after": "preference/" + "c" * 12,
    }
    assert found.reference == "before"
    assert found.analysis.objective == DPOConfig(beta=0.3)
    assert found.analysis.pair_ids == ("train-0007",)
    assert found.analysis.learning_rate == 2e-4


def test_a_training_on_groups_has_no_pair_to_map() -> None:
    assert map_command(GRPOConfig(), INPUTS) == ""
    assert map_command(None, INPUTS) == ""
