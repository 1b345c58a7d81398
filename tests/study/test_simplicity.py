"""What the chapter on simplicity shows, on seeds that nothing was chosen by."""

from __future__ import annotations

import pandas as pd
import pytest

from dynolab.chapters.simplicity.page import mapping_verdicts
from dynolab.chapters.simplicity.sweep import learned, sweep
from flows.chapter.digits import SimplicityParameters
from flows.parameters import load_parameters
from tasks.chapters import SpaceConfig
from tests.flows.lab import ROOT

SEEDS = range(100, 105)
SPACES = load_parameters(
    SimplicityParameters, ROOT / "deploy" / "studies" / "simplicity_builtin.yaml"
).spaces

pytestmark = pytest.mark.study


@pytest.mark.parametrize("space", SPACES, ids=[one.space.label for one in SPACES])
def test_short_descriptions_are_learned_fast_and_long_ones_hinder_themselves(
    space: SpaceConfig,
) -> None:
    mappings = space.mappings(seed=1)
    found = sweep(
        space.space,
        mappings,
        SEEDS,
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
