"""What GRPO and its relatives do in the worlds made for their claims: over five seeds that
nothing was chosen by."""

from __future__ import annotations

import pytest

from tests.benchmarks.worlds import run

# GRPO trains five arms over five seeds: a quarter of an hour on two idle cores.
pytestmark = [pytest.mark.study, pytest.mark.timeout(3600)]


def test_grpo_raises_the_first_answer_at_the_cost_of_what_many_find() -> None:
    table = run("grpo", "strategies")
    outcomes = table["verdicts"]
    for split in ("train", "heldout"):
        assert outcomes[f"grpo/{split}/pass_at_1"] == "appears"
        assert outcomes[f"grpo/{split}/pass_at_16"] == "appears"
        assert outcomes[f"grpo/{split}/entropy"] == "appears"
    assert outcomes["positives/heldout/passes"] == "appears"


def test_nthr_finds_more_harmful_tokens_than_chance() -> None:
    table = run("grpo", "sums")
    assert table["verdicts"]["nthr/finds_harm"] == "appears"
    assert table["verdicts"]["nthr/lifts_more_than_grpo"] == "appears"
