"""Trainings without some examples, beside what a ledger and a metagradient say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.responses import step_responses
from dynolab.objectives import DPOConfig
from dynolab.training.config import OptimizerConfig, TrainConfig
from experiments.counterfactual.flow import FLOW
from experiments.counterfactual.page import forecast_figure
from experiments.counterfactual.results import Agreement, Dropped, Effect, Repeat
from experiments.counterfactual.stages import agree, compared_removals
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from models.language import load_language_model
from tasks.training import PREFERENCE
from tests.flows.analysed import PLAIN, Analysed
from tests.flows.in_process import InProcess, step_names

ONE_PROCESS = {"kind": "plain", "ranks": 1}
STUDY: dict[str, Any] = {
    "name": "small",
    "data": {"world": {"entities": 20, "train_pairs": 12, "heldout_pairs": 6, "corpus_rows": 64}},
    "base": {"training": {"engine": ONE_PROCESS, "steps": 4, "batch_size": 4}},
    "sft": {"engine": ONE_PROCESS, "steps": 4, "batch_size": 4},
    "preference": {
        "objective": {"name": "dpo"},
        "optimizer": {"name": "sgd", "learning_rate": 1.0e-2},
        "engine": ONE_PROCESS,
        "steps": 6,
        "batch_size": 4,
        "probe_every": 6,
    },
    "ledger": {"pairs": 2, "answers": 2, "heldout_answers": 0},
}
WANTED = ("data", "base", "sft", "preference", "ledger")


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("study") / "small.yaml"
    file.write_text(yaml.safe_dump(STUDY))
    return file


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, study_file: Path) -> InProcess:
    """A store with the study's steps up to its ledger."""
    here = InProcess(tmp_path_factory.mktemp("home"))
    steps = study_steps(resolved(load_parameters(StudyParameters, study_file)))
    here.run_steps([step for step in steps if step.name in WANTED])
    return here


def test_removals_are_measured_and_set_beside_the_ledger(lab: InProcess, study_file: Path) -> None:
    settings = {
        "study": str(study_file),
        "groups": 4,
        "group_size": 3,
        "blamed_size": 2,
        "further_seeds": 1,
    }
    plan = lab.plan(FLOW, settings)
    assert step_names(plan) == [
        "whole",
        "metagradient",
        *(f"random-{number}" for number in range(4)),
        "blamed-0",
        "words-0",
        "blamed-1",
        "words-1",
        "whole-seed-1",
        "blamed-0-seed-1",
        "blamed-1-seed-1",
        *(f"random-{number}-seed-1" for number in range(4)),
        "counterfactual",
    ]
    results = lab.run_plan(plan)
    effects = lab.rows(results["counterfactual"], "effects.jsonl", Effect)
    agreements = lab.rows(results["counterfactual"], "agreement.jsonl", Agreement)
    by_estimate = {agreement.estimate: agreement for agreement in agreements}
    assert set(by_estimate) == {"ledger", "metagradient", "words", "random", "another order"}
    ceiling = by_estimate["another order"]
    assert ceiling.of_ceiling == 1
    assert ceiling.blamed == by_estimate["random"].blamed == 0
    for agreement in (by_estimate["ledger"], by_estimate["metagradient"]):
        assert agreement.lds is not None
        assert ceiling.lds is not None
        assert agreement.of_ceiling == pytest.approx(agreement.lds / ceiling.lds)
        assert (agreement.groups, agreement.blamed, agreement.seeds) == (4, 2, 2)
        assert agreement.lds > 0.5, "short trainings with small steps are nearly linear"
        assert agreement.same_sign == 1
    # The likeliest tokens are others without the group.
    for effect in effects:
        if effect.estimate in (
            "ledger",
            "metagradient",
        ) and not effect.functional.endswith("argmax"):
            assert effect.measured == pytest.approx(effect.predicted, rel=0.25, abs=0.06)
    repeats = lab.rows(results["counterfactual"], "repeats.jsonl", Repeat)
    assert [(each.group, each.seed) for each in repeats] == [
        ("blamed-0", 0),
        ("blamed-1", 0),
        ("blamed-0", 1),
        ("blamed-1", 1),
    ]
    assert len({each.measured for each in repeats}) == 4
    page = lab.text(results["counterfactual"], "counterfactual.html")
    assert 'id="blamed"' in page
    assert "There is no metagradient" not in page


def test_no_metagradient_is_planned_where_none_is_wanted(lab: InProcess, study_file: Path) -> None:
    plan = lab.plan(FLOW, {"study": str(study_file), "metagradient": False})
    assert "metagradient" not in step_names(plan)


@pytest.mark.parametrize(
    ("ledger", "message"),
    [
        ({**STUDY["ledger"], "every": 2}, r"ledger\.every = 2: what an example did"),
        (None, "its step ledger has not run"),
    ],
)
def test_a_study_without_a_ledger_of_all_steps_is_refused(
    ledger: dict[str, Any] | None, message: str, lab: InProcess, tmp_path: Path
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(yaml.safe_dump(STUDY | {"ledger": ledger}))
    with pytest.raises(ConfigError, match=message):
        lab.plan(FLOW, {"study": str(file)})


def test_without_any_group_there_is_nothing_to_train(lab: InProcess, study_file: Path) -> None:
    with pytest.raises(ConfigError, match="blamed = 0: no pairs would be left out"):
        lab.plan(FLOW, {"study": str(study_file), "groups": 0, "blamed": 0})


def test_a_dot_is_what_a_set_was_forecast_to_do_and_did() -> None:
    groups = [
        Dropped(name="r", examples=("a",)),
        Dropped(name="b0", examples=("b",), answer="x"),
        Dropped(name="w0", examples=("c",), answer="x", blamed_by="words"),
        Dropped(name="b1", examples=("d",), answer="y"),
    ]
    forecasts = {("r", "x"): 1, ("r", "y"): 3, ("b0", "x"): 4, ("w0", "x"): 3, ("b1", "y"): 8}
    effects = [
        Effect(group=group, functional=answer, estimate="ledger", predicted=nats, measured=nats / 2)
        for (group, answer), nats in forecasts.items()
    ]
    figure = forecast_figure(effects, groups)
    dots = {trace.name: list(zip(trace.x, trace.y, strict=True)) for trace in figure.plot.data[:3]}
    assert list(dots.values()) == [[(4, 2), (8, 4)], [(3, 1.5)], [(2, 1)]]
    assert "Over 4 sets" in figure.message and "0.5 nats for each nat" in figure.message
    assert "(r = 1)" in figure.message
    assert "nothing to compare here yet" in forecast_figure([], groups[:1]).message


def test_a_training_without_an_example_lacks_its_gradient_and_no_other(analysed: Analysed) -> None:
    """One step of SGD: the rest keep their weight in the batch."""
    config = TrainConfig(
        objective=DPOConfig(),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1),
        engine=PLAIN,
        steps=1,
        batch_size=4,
        record_steps=(0,),
    )
    reads = {"data": analysed.data, "model": analysed.sft}
    whole = analysed.run(PREFERENCE, config, **reads)
    record = analysed.record(whole, 0)
    dropped = record.examples[1].id
    changes = {"record_steps": (), "without": (dropped,)}
    without = analysed.run(PREFERENCE, config.model_copy(update=changes), **reads)
    policy = PolicyFunction(load_language_model(analysed.folder(whole, "model")), torch.float64)
    sample = [sequence for example in record.examples for sequence in example.named().values()]
    gradients = GroupedGradients.build(policy, record.before, sample[:2])
    responses = step_responses(record, gradients)
    own = [label.id == dropped for label in responses.labels]
    expected = 0.1 * responses.gradients[own].sum(0)
    ends = []
    for result in (whole, without):
        model = load_language_model(analysed.folder(result, "model"))
        weights = dict(model.named_parameters())
        ends.append(flatten({name: weights[name].double() for name in record.before}))
    assert float((ends[1] - ends[0] - expected).norm() / expected.norm()) < 1e-3


def test_without_some_examples_steps_are_not_recorded() -> None:
    with pytest.raises(ConfigError, match="without"):
        TrainConfig(without=("a",), record_steps=(0,))


def test_removals_are_held_against_random_ones_and_those_that_words_name() -> None:
    groups = [
        Dropped(name="r0", examples=("a",)),
        Dropped(name="r1", examples=("b",)),
        Dropped(name="b0", examples=("c",), answer="x"),
        Dropped(name="w0", examples=("d",), answer="x", blamed_by="words"),
        Dropped(name="b1", examples=("c",), answer="y"),
        Dropped(name="w1", examples=("d",), answer="y", blamed_by="words"),
    ]
    measured = {
        "x": {"r0": 1, "r1": 3, "b0": 5, "w0": 4, "b1": 0, "w1": 0},
        "y": {"r0": 0, "r1": 0, "b0": 0, "w0": 0, "b1": 7, "w1": -1},
    }
    effects = [
        Effect(group=group, functional=answer, estimate="ledger", predicted=0, measured=nats)
        for answer, by_group in measured.items()
        for group, nats in by_group.items()
    ]
    removals = compared_removals(effects, groups)
    assert removals["ledger over random"].mean == pytest.approx((5 - 2 + 7 - 0) / 2)
    assert removals["words over random"].mean == pytest.approx((4 - 2 - 1 - 0) / 2)
    assert removals["ledger over words"].mean == pytest.approx((5 - 4 + 7 + 1) / 2)
    assert compared_removals(effects[:1], groups[:1])["ledger over random"].n == 0


def test_the_score_is_the_mean_rank_correlation_over_groups() -> None:
    groups = [Dropped(name=f"g{number}", examples=("a",)) for number in range(4)]
    groups.append(Dropped(name="b", examples=("a",), answer="x"))
    values = {"g0": (1, 2), "g1": (2, 4), "g2": (3, 6), "g3": (4, 8), "b": (1, -1)}
    effects = [
        Effect(group=name, functional=functional, estimate="ledger", predicted=p, measured=sign * m)
        for name, (p, m) in values.items()
        for functional, sign in (("x", 1), ("y", -1))
    ]
    repeats = [
        Repeat(group="b", functional="x", seed=seed, measured=nats)
        for seed, nats in ((0, -1), (1, 2))
    ]
    (agreement,) = agree(effects, groups, repeats)
    assert agreement.lds == pytest.approx(0.0)
    assert (agreement.groups, agreement.blamed, agreement.seeds) == (4, 1, 2)
    assert agreement.same_sign == 0.5
    # On x, measured is twice what was predicted; on y minus twice.
    assert agreement.error == pytest.approx((5 / 4) ** 0.5)
