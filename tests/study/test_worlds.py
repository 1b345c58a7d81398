"""What GRPO and its relatives do in the worlds made for their claims, and what mappings are learned
fast: over five seeds that nothing was chosen by."""

from __future__ import annotations

import pandas as pd
import pytest

from dynolab.chapters.simplicity.page import mapping_verdicts
from dynolab.chapters.simplicity.sweep import learned, sweep
from flows.chapter.digits import SimplicityParameters
from flows.parameters import load_parameters
from tasks.chapters import SpaceConfig
from tests.benchmarks.figures import STUDIES
from tests.benchmarks.worlds import run

# GRPO trains five arms over five seeds: a quarter of an hour on two idle cores.
pytestmark = [pytest.mark.study, pytest.mark.timeout(3600)]

SPACES = load_parameters(SimplicityParameters, STUDIES / "simplicity_builtin.yaml").spaces


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


@pytest.mark.parametrize("space", SPACES, ids=[one.space.label for one in SPACES])
def test_short_descriptions_are_learned_fast_and_long_ones_hinder_themselves(
    space: SpaceConfig,
) -> None:
    mappings = space.mappings(seed=1)
    found = sweep(
        space.space,
        mappings,
        range(100, 105),
        width=32,
        learning_rate=space.learning_rate,
        steps=space.steps,
    )
    verdicts = {
        mapping_verdict.id.partition("/")[2]: mapping_verdict.outcome
        for mapping_verdict in mapping_verdicts(pd.DataFrame(learned(space.space, mappings, found)))
    }
    for name in ("speed", "similarity", "contradiction", "start", "explains"):
        assert verdicts[name] == "holds", name
