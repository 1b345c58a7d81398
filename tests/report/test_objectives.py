"""A report of any objective: its own name everywhere, and the claims that can be made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dynolab.claims.study import claims_of
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.report.study.page import write_report
from dynolab.report.style import objective_name, stage_title
from tests.report.parsed import words_of
from tests.report.synthetic import study, training


@pytest.mark.parametrize("objective", sorted(PAIR_OBJECTIVES - {"dpo"}))
def test_a_loss_on_pairs_is_judged_as_dpo_under_its_own_name(
    objective: str, tmp_path: Path
) -> None:
    stage = {"stage": objective}
    whole = training("preference", objective, token_map=None)
    own = replace(
        whole,
        forces=tuple(row.model_copy(update=stage) for row in whole.forces),
        replay=tuple(row.model_copy(update=stage) for row in whole.replay),
    )
    summary = write_report(
        replace(study(), trainings=(study().trainings[0], own), contrasts=()), tmp_path
    )
    outcomes = {verdict["id"]: verdict["outcome"] for verdict in summary["verdicts"]}
    for claim in ("rejected", "chosen", "argmax", "gap", "forces"):
        assert outcomes[f"{objective}/{claim}"] == "appears"
    assert not [name for name in outcomes if name.startswith("dpo/")]
    name = objective_name(objective)
    assert f"Forces of single {name} steps" in words_of(tmp_path / "report.html", " ")


def test_what_the_extended_sft_trains_up_is_not_expected_to_fall() -> None:
    plain = [claim.id.removeprefix("sft/") for claim in claims_of("sft")]
    both = [claim.id.removeprefix("sft_extended/") for claim in claims_of("sft_extended")]
    assert both == [name for name in plain if name != "rejected"]
    assert claims_of("grpo") == ()


def test_objectives_are_called_as_their_papers_call_them() -> None:
    names = ["sft", "sft_extended", "dpo", "robust_dpo", "ipo", "slic", "hinge", "simpo", "sppo"]
    assert [objective_name(name) for name in names] == [
        "SFT",
        "Extended SFT",
        "DPO",
        "Robust DPO",
        "IPO",
        "SLiC",
        "Hinge",
        "SimPO",
        "SPPO",
    ]
    assert stage_title("sft") == "Supervised fine-tuning"
    assert stage_title("simpo") == "SimPO"
