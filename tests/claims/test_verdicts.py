from __future__ import annotations

import numpy as np
import pytest

from dynolab.claims.claim import judge
from dynolab.claims.study import CLAIMS, assess, claims_of
from dynolab.claims.verdict import Verdict, above, below, never
from dynolab.objectives.registry import PAIR_OBJECTIVES
from dynolab.probes.paths import LearningPaths, learning_paths, peak_change
from dynolab.results.study import ForceRow
from dynolab.statistics import Interval, mean_interval
from tests.report.synthetic import DPO, SFT, probes, study, up, up_then_down

CLAIM = {claim.id: claim for claim in CLAIMS}


def verdicts_of(sft=None, dpo=None, forces=()) -> dict[str, Verdict]:
    trainings = {"sft": learning_paths(sft or ()), "dpo": learning_paths(dpo or ())}
    return {verdict.id: verdict for verdict in assess(trainings, forces)}


def paths_of(**logp: list[list[float]]) -> LearningPaths:
    """Paths from one list of values per pair."""
    arrays = {kind: np.array(values, dtype=float).T for kind, values in logp.items()}
    steps, pairs = next(iter(arrays.values())).shape
    return LearningPaths(np.arange(steps), tuple(f"q{i}" for i in range(pairs)), arrays)


def test_the_papers_shapes_all_appear() -> None:
    sft, dpo = study().trainings
    found = verdicts_of(sft.probes, dpo.probes, (*sft.forces, *dpo.forces))
    assert {v.outcome for v in found.values()} == {"holds"}, found
    assert len(found) == len(CLAIMS) + 2


@pytest.mark.parametrize(
    ("claim", "shapes"),
    [
        ("sft/chosen", SFT | {"chosen": lambda t: -5.0 * t}),
        ("sft/rejected", SFT | {"rejected": lambda t: -9.0 * t}),
        ("sft/irr_test", SFT | {"irr_test": lambda t: -9.0 * t}),
        ("sft/hallucination", SFT | {"irr_train": up(10.0)}),
        ("sft/random_permute", SFT | {"random_permute": up(3.0)}),
        ("sft/gap", SFT | {"argmax": up(40.0)}),
        ("dpo/rejected", DPO | {"rejected": lambda t: -1.0 * t}),
        ("dpo/chosen", DPO | {"chosen": up(2.0)}),
        ("dpo/argmax", DPO | {"argmax": lambda t: -3.0 * t}),
        ("dpo/gap", DPO | {"argmax": lambda t: -4.0 * t}),
    ],
)
def test_a_path_of_the_wrong_shape_does_not_appear(claim: str, shapes: dict) -> None:
    rows = probes(shapes, 100)
    found = verdicts_of(rows if claim.startswith("sft") else None, rows)
    assert found[claim].outcome == "fails"


def test_a_steady_rise_is_no_fall() -> None:
    verdict = verdicts_of(probes(SFT | {"rejected": lambda t: 20.0 * t}, 100))["sft/rejected"]
    rise, fall = verdict.measured
    assert rise.outcome == "holds"
    assert "holds" not in (fall.outcome, verdict.outcome)


def test_a_change_as_large_as_its_spread_is_unclear() -> None:
    paths = paths_of(chosen=[[0.0, 1.0], [0.0, -1.0], [0.0, 1.1], [0.0, -0.9]])
    assert judge(CLAIM["sft/chosen"], [{"sft": paths}]).outcome == "unclear"


def test_one_pair_is_never_more_than_unclear() -> None:
    paths = paths_of(chosen=[[0.0, 5.0]])
    verdict = judge(CLAIM["sft/chosen"], [{"sft": paths}])
    assert verdict.outcome == "unclear"
    assert verdict.measured[0].mean == 5.0


def test_differences_are_paired() -> None:
    """Pairs differ by far more than the kinds do, yet every pair shows the difference."""
    train = [[0.0, 10.0 * i + 1.0] for i in range(6)]
    test = [[0.0, 10.0 * i + 0.1 * (i % 2)] for i in range(6)]
    verdict = judge(CLAIM["sft/hallucination"], [{"sft": paths_of(irr_train=train, irr_test=test)}])
    assert verdict.outcome == "holds"


def test_claims_without_their_kinds_are_not_measured() -> None:
    only_chosen = tuple(
        row.model_copy(update={"argmax_logp": None})
        for row in probes(SFT, 100)
        if row.kind == "chosen"
    )
    outcomes = {name: verdict.outcome for name, verdict in verdicts_of(only_chosen).items()}
    assert outcomes.pop("sft/chosen") == "holds"
    assert set(outcomes.values()) == {"not measured"}


def test_a_pair_that_lacks_a_kind_is_left_out() -> None:
    paths = paths_of(chosen=[[0.0, 1.0], [0.0, 1.2], [0.0, np.nan]])
    assert judge(CLAIM["sft/chosen"], [{"sft": paths}]).measured[0].n == 2


def test_claims_follow_the_studys_trainings() -> None:
    """An objective without claims of its own is asked about its forces alone."""
    paths = learning_paths(probes(SFT, 100))
    found = assess({"grpo": paths, "sft": paths}, [force(0.1, 0.1, "q0", "grpo")])
    assert {verdict.topic for verdict in found[:-2]} == {"sft"}
    assert [verdict.id for verdict in found[-2:]] == ["grpo/forces", "sft/forces"]
    assert found[-1].outcome == "not measured"


def test_held_out_prompts_do_not_decide() -> None:
    rows = probes(SFT, 100)
    worse = tuple(
        row.model_copy(update={"logp": -99.0}) if row.split == "heldout" and row.step else row
        for row in rows
    )
    assert verdicts_of(worse)["sft/chosen"] == verdicts_of(rows)["sft/chosen"]


def test_wandering_paths_show_no_peak() -> None:
    """The peak taken from the same pairs would rise above every start."""
    rng = np.random.default_rng(0)
    walks = [rng.normal(size=(12, 30)) for _ in range(200)]
    moved = [peak_change(walk) for walk in walks]
    same = [walk.mean(axis=1).max() - walk[0].mean() for walk in walks]
    assert np.mean(same) > 0.25
    assert abs(np.mean([rise.mean() for rise, _ in moved])) < 0.05
    peaks = [mean_interval(rise).low > 0 and mean_interval(fall).high < 0 for rise, fall in moved]
    assert sum(peaks) <= 4


def test_peak_change_finds_the_peak() -> None:
    path = up_then_down(10.0, 4.0)(np.linspace(0, 1, 11))[:, None] + np.zeros((11, 6))
    rise, fall = peak_change(path)
    np.testing.assert_allclose(rise, 10.0)
    np.testing.assert_allclose(fall, -6.0)


def force(measured: float, predicted: float, pair: str, stage: str = "dpo") -> ForceRow:
    return ForceRow(
        stage=stage,
        step=1,
        pair_id=pair,
        split="train",
        kind="chosen",
        tokens=3,
        in_batch=True,
        measured=measured,
        predicted=predicted,
        from_chosen=predicted,
        from_rejected=0.0,
        from_history=0.0,
        residual=measured - predicted,
    )


def test_exact_predictions_explain_and_empty_ones_do_not() -> None:
    exact = [force(0.1 * i, 0.1 * i, f"q{i}") for i in range(1, 9)]
    nothing = [force(0.1 * i, 0.0, f"q{i}", "sft") for i in range(1, 9)]
    verdicts = verdicts_of(forces=[*exact, *nothing])
    for stage, outcome, left in (("dpo", "holds", 0.0), ("sft", "fails", 1.0)):
        verdict = verdicts[f"{stage}/forces"]
        assert (verdict.outcome, verdict.measured[0].mean) == (outcome, left)


KEPT = (
    '{"id":"lenet/size","topic":"LeNet","claim":"Its size moves","expected":"> 0.1","measured":'
    '[{"name":"Δ","mean":0.2,"low":0.05,"high":0.35,"n":5,"unit":"nats","violations":null},'
    '{"name":"V = 5","mean":NaN,"low":NaN,"high":NaN,"n":0,"unit":"","violations":0}],'
    '"verdict":"unclear"}'
)


def test_a_kept_line_is_read_and_written_as_it_was() -> None:
    verdict = Verdict.model_validate_json(KEPT)
    assert verdict.outcome == "unclear"
    assert verdict.measured[0].interval == Interval(0.2, 0.05, 0.35, 5)
    assert verdict.model_dump_json() == KEPT


def test_a_summary_calls_outcomes_by_its_own_words() -> None:
    alone = Interval(1.0, float("nan"), float("nan"), 1)
    kept = {
        outcome: Verdict.of("a", "b", "c", "d", figure).summary()
        for outcome, figure in {
            "appears": above("x", Interval(1.0, 0.5, 1.5, 3)),
            "does not": below("x", Interval(1.0, 0.5, 1.5, 3)),
            "unclear": above("x", alone),
            "not measured": never("x", 0, 0),
        }.items()
    }
    assert {name: summary["outcome"] for name, summary in kept.items()} == {n: n for n in kept}
    assert kept["unclear"]["measured"] == {"x": {"mean": 1.0, "low": None, "high": None, "n": 1}}


@pytest.mark.parametrize("objective", sorted(PAIR_OBJECTIVES))
def test_a_loss_on_pairs_is_judged_as_dpo_under_its_own_name(objective: str) -> None:
    ids = [claim.id for claim in claims_of(objective)]
    assert ids == [f"{objective}/{name}" for name in ("rejected", "chosen", "argmax", "gap")]


def test_what_the_extended_sft_trains_up_is_not_expected_to_fall() -> None:
    plain = [claim.id.removeprefix("sft/") for claim in claims_of("sft")]
    both = [claim.id.removeprefix("sft_extended/") for claim in claims_of("sft_extended")]
    assert both == [name for name in plain if name != "rejected"]
    assert claims_of("grpo") == ()
