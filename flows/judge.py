"""The comparison of policies: prompts → every policy's answers → every judge's verdicts → page."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.judge_parameters import JudgeParameters, resolved_judge
from flows.judge_steps import judge_steps
from flows.running import run_steps
from tasks.runtime.opening import planning_platform


@flow(name="judge", flow_run_name="{parameters.name}")
def judge(parameters: JudgeParameters, fresh: bool = False) -> dict[str, Any]:
    """Asks judges whose answers are better: of two policies, in both orders.

    `fresh` computes every stage again; replies of a model that are kept are not asked for again.
    Returns each stage's result as the study does.
    """
    known, given = resolved_judge(parameters, planning_platform())
    return run_steps(
        judge_steps(known, given),
        study=known.name,
        project=known.project,
        given=given,
        params=known.model_dump(mode="json"),
        fresh=fresh,
        tags={"flow": "judge"},
    )
