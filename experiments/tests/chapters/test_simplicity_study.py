"""What mappings are learned fast: over five seeds that nothing was chosen by."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.chapters.flows.digits import SimplicityParameters
from experiments.chapters.simplicity.page import mapping_verdicts
from experiments.chapters.simplicity.sweep import learned, sweep
from experiments.chapters.stages import SpaceConfig
from flows.parameters.parse import STUDIES, load_parameters

pytestmark = [pytest.mark.study, pytest.mark.timeout(3600)]

SPACES = load_parameters(SimplicityParameters, STUDIES / "simplicity_builtin.yaml").spaces


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
