"""The best run is clearly worse nowhere, and clearly better on the most measures."""

from __future__ import annotations

from dynolab.comparisons.arm_table import LEAST_COUNT, ArmTable
from dynolab.comparisons.matched import table_of
from dynolab.report.tables import MEASURES, standings, unlearned
from tests.report.pairs import mitigation


def table(counts: int = 40, **runs: dict[str, float]) -> ArmTable:
    """Runs of three seeds whose figures are the given differences from a baseline of zeros."""
    values = {"base": [dict.fromkeys(MEASURES, 0.0)] * 3} | {
        run: [{name: x + 0.01 * seed for name, x in own.items()} for seed in range(3)]
        for run, own in runs.items()
    }
    return ArmTable(values, counts=dict.fromkeys(MEASURES, counts))


GOOD = {"train/chosen": 1.0, "heldout/chosen": 2.0}
RUNS = {
    "good": GOOD,
    "better": {**GOOD, "train/fell": -0.5},
    "mixed": {**GOOD, "matched/chosen": 3.0, "heldout/fell": 0.5},
    "same": {"train/chosen": -0.01, "heldout/chosen": -0.01},
}


def test_the_best_run_is_better_on_most_measures_and_worse_on_none() -> None:
    ranked = standings(table(**RUNS), list(RUNS), "base")
    assert [own.run for own in ranked] == ["better", "good", "mixed", "same"]
    assert [own.recommended for own in ranked] == [True, True, False, False]
    assert ranked[0].better == ("train/chosen", "heldout/chosen", "train/fell")
    assert ranked[2].worse == ("heldout/fell",) and ranked[3].better == ()


def test_a_tie_goes_to_the_run_that_ends_highest_held_out() -> None:
    higher = {"train/chosen": 0.5, "heldout/chosen": 3.0}
    ranked = standings(table(good=GOOD, higher=higher), ["good", "higher"], "base")
    assert [own.run for own in ranked] == ["higher", "good"]


def test_few_pairs_and_single_seeds_decide_nothing() -> None:
    few = standings(table(counts=LEAST_COUNT - 1, **RUNS), list(RUNS), "base")
    single = mitigation(seeds=(0,))
    once = standings(table_of(single), single.others, "dpo")
    assert not [own for own in (*few, *once) if own.better or own.worse]


def test_runs_that_do_not_prefer_chosen_answers_have_not_learned() -> None:
    figures = ArmTable({"a": [{"train/margin": -2.0}], "b": [{"train/margin": 0.1}], "c": [{}]})
    assert unlearned(figures, ["a", "b", "c"]) == ["a"]


def test_differences_at_the_same_margin_are_those_from_the_baseline() -> None:
    compared = mitigation(lost="simpo")
    figures = table_of(compared)
    assert figures.difference("dose", "dpo", "matched/gap") == figures.mean("dose", "matched/gap")
    assert figures.difference("simpo", "dpo", "matched/gap").n == 2
    assert figures.few("matched/chosen") == 0
