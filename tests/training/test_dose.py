"""Doses designed in a training: against autograd in float64, in its records, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dynolab.data.batches import CHOSEN, REJECTED, TokenBatch, collate
from dynolab.data.encode import Encoded, Encoder
from dynolab.data.groups import Completion, Group, collate_groups, count_group_totals
from dynolab.data.rows import Example, read_rows, write_rows
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, split_step
from dynolab.forces.step.split import replay_error, rounding_floor
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import build_objective
from dynolab.objectives.dpo import DPOConfig
from dynolab.objectives.pairs import band_dose
from dynolab.training.config import OptimizerConfig
from dynolab.training.dose import Calibrator, DoseDesigner
from dynolab.training.engine import PlainEngine, in_metric
from dynolab.training.examples import Offline
from dynolab.training.step_batch import collate_step, count_step
from models.language import load_language_model, load_tokenizer
from tasks.training import check_rows
from tests.training.small import (
    group_settings,
    make_job,
    metrics,
    run_small,
    settings,
    step_record,
)

LEVELS = ("batch", "pair", "token")


def designed(per: str, sample: int = 6, name: str = "dpo") -> dict[str, Any]:
    return {"name": name, "designed_dose": {"per": per, "sample": sample}}


class OneStep:
    """One step's batch and its designer in float64, and what autograd says of both."""

    def __init__(self, inputs: Path, tmp_path: Path, per: str, step: int = 0) -> None:
        self.config = settings(objective=designed(per), optimizer={"name": "sgd"})
        job = make_job(inputs, tmp_path, self.config)
        self.logits = ResponseLogits(load_language_model(job.model).double().eval())
        encoder = Encoder(load_tokenizer(job.model), 48, "error")
        self.objective = build_objective(self.config.objective)
        self.rows = encoder.examples(read_rows(job.examples, Example))
        source = Offline(self.rows, self.objective, job, 0)
        source.begin(self.logits)
        self.engine = PlainEngine(self.logits, self.config)
        self.examples, self.step = list(source.draw(self.engine, step).examples), step
        self.designer = DoseDesigner(self.config, self.logits, self.objective, self.rows)

    def doses(self, batches: list[TokenBatch]) -> list[Tensor]:
        starts = [self.logits(batch, token_logps).detach() for batch in batches]
        ids = {example.id for example in self.examples}
        return self.designer.design(self.engine, self.step, batches, starts, ids)

    def batch(self, examples: list[Any] | None = None) -> TokenBatch:
        totals = count_step(self.examples, self.objective.sides)
        return collate_step(examples or self.examples, self.objective, totals, 0)

    def gradient(self, value: Tensor) -> Tensor:
        weights = list(self.logits.parameters())
        return torch.cat(
            [g.flatten() for g in torch.autograd.grad(value, weights, materialize_grads=True)]
        )

    def effect(self, dose: Tensor) -> float:
        """⟨q, −∇loss⟩: the sample's first-order change under SGD per unit of learning rate."""
        ids = {example.id for example in self.examples}
        sample = collate(self.designer._sample(self.step, ids, 6), 0)
        q = self.gradient(self.logits(sample, token_logps).sum() / len(sample.side))
        batch = replace(self.batch(), dose=dose)
        loss = self.objective.loss(self.logits(batch, token_logps), batch)
        return -float(q @ self.gradient(loss))


@pytest.mark.parametrize("per", LEVELS)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_sample_does_not_fall_and_stays_where_a_dose_is_interior(
    inputs: Path, tmp_path: Path, per: str, step: int
) -> None:
    one = OneStep(inputs, tmp_path, per, step)
    batch = one.batch()
    (dose,) = one.doses([batch])
    rejected = batch.token_side == REJECTED
    assert bool((dose[~rejected] == 1).all())
    full, realised = one.effect(torch.ones_like(dose)), one.effect(dose)
    size = abs(full) + abs(one.effect(torch.where(rejected, 0.0, 1.0).double()))
    if bool((dose == 1).all()):
        assert full >= -1e-7 * size
    else:
        assert full < 0
        assert realised == pytest.approx(0, abs=1e-6 * size)


def test_one_dose_is_the_largest_that_autograd_allows(inputs: Path, tmp_path: Path) -> None:
    one = OneStep(inputs, tmp_path, "batch")
    batch = one.batch()
    rejected = batch.token_side == REJECTED
    without, full = (one.effect(torch.where(rejected, d, 1.0).double()) for d in (0.0, 1.0))
    assert 0 < without < without - full, "the dose of this step lies inside"
    (dose,) = one.doses([batch])
    assert dose[rejected].unique().item() == pytest.approx(without / (without - full), rel=1e-6)


@pytest.mark.parametrize("per", LEVELS)
def test_order_padding_and_micro_batches_do_not_matter(
    inputs: Path, tmp_path: Path, per: str
) -> None:
    one = OneStep(inputs, tmp_path, per)
    together = one.doses([one.batch()])[0]
    turned = one.examples[::-1]
    apart = [one.batch([example]) for example in turned]
    doses = one.doses(apart)
    torch.testing.assert_close(torch.cat(doses[::-1]), together, rtol=1e-6, atol=1e-6)


def own_effects(one: OneStep, batch: TokenBatch, dose: Tensor) -> list[float]:
    """What a step on a pair does to its chosen and rejected answer, as cosines with it."""
    dosed, effects = replace(batch, dose=dose), []
    step = -one.gradient(one.objective.loss(one.logits(dosed, token_logps), dosed))
    for side in (CHOSEN, REJECTED):
        slope = one.gradient(one.logits(batch, token_logps)[batch.token_side == side].sum())
        effects.append(float(slope @ step / (slope.norm() * step.norm())))
    return effects


@pytest.mark.parametrize("weight", [0.02, 1.0, 50.0])
def test_a_calibrated_pair_keeps_its_chosen_answer_and_lowers_the_other(
    inputs: Path, tmp_path: Path, weight: float
) -> None:
    """Under losses that weigh rejected answers too little, as much as the others, and too much."""
    one = OneStep(inputs, tmp_path, "pair")
    one.objective = build_objective(DPOConfig(negative_dose=weight))
    calibrator = Calibrator(one.logits, one.objective, one.rows, 0)
    chosen_doses = []
    for example in one.examples:
        batch = one.batch([example])
        start = one.logits(batch, token_logps).detach()
        (doses,) = calibrator.design(one.engine, 0, [batch], [start], ())
        rejected = batch.token_side == REJECTED
        assert bool((doses[~rejected] == 1).all())
        chosen_doses.append(float(doses[rejected].unique()))
        up, down = own_effects(one, batch, doses)
        assert up >= -1e-9 and down <= 1e-9
        whole_up, whole_down = own_effects(one, batch, torch.ones_like(doses))
        if whole_up >= 0 >= whole_down:
            assert chosen_doses[-1] == 1
        else:
            assert (chosen_doses[-1] < 1) == (whole_up < 0)
            assert min(abs(up), abs(down)) < 1e-9
    assert {dose > 1 for dose in chosen_doses if dose != 1} == {0.02: {True}, 50.0: {False}}.get(
        weight, set()
    )


def test_the_band_s_dose_is_the_nearest_to_one() -> None:
    assert band_dose(4.0, -1.0, 4.0) == 1
    assert band_dose(4.0, 2.0, 9.0) == 1
    assert band_dose(1.0, 2.0, 9.0) == 0.5
    assert band_dose(9.0, 2.0, 1.0) == 2


def test_the_sample_is_of_others_and_anew_at_each_step(inputs: Path, tmp_path: Path) -> None:
    one = OneStep(inputs, tmp_path, "batch")
    ids = {example.id for example in one.examples}
    samples = [one.designer._sample(step, ids, 6) for step in (0, 1, 0)]
    assert samples[0] == samples[2] != samples[1]
    own = [row.chosen for row in one.rows if row.id in ids]
    assert not any(answer in own for answer in samples[0] + samples[1])
    assert len(samples[0]) == 6


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop"])
@pytest.mark.parametrize("per", ["batch", "token"])
def test_a_recorded_step_replays_with_the_doses_that_it_chose(
    inputs: Path, tmp_path: Path, per: str, optimizer: str
) -> None:
    config = settings(
        objective=designed(per),
        optimizer={"name": optimizer, "learning_rate": 1e-2},
        record_steps=[0, 3],
    )
    job = run_small(inputs, tmp_path, config)
    used = [line["train/dose"] for line in metrics(job) if "train/dose" in line]
    assert len(used) == 6
    assert min(used) < 1
    for step in (0, 3):
        record = step_record(job, step)
        doses = [example.rejected_dose or [] for example in record.examples]
        mean = sum(sum(dose) / len(dose) for dose in doses) / len(doses)
        assert mean == pytest.approx(used[step], rel=1e-6)
        policy = PolicyFunction(load_language_model(job.model))
        split = split_step(record, policy)
        assert replay_error(split, record) < 3e-4 + 2 * rounding_floor(record)
        undosed = [e.model_copy(update={"rejected_dose": None}) for e in record.examples]
        if mean < 1:
            other = split_step(replace(record, examples=tuple(undosed)), policy)
            assert replay_error(other, record) > 1e-2


def test_the_metric_is_the_step_that_a_gradient_would_make() -> None:
    generator = torch.Generator().manual_seed(0)
    before, now = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    now *= before.norm() / now.norm()  # as large as the moments say
    for name, build in {
        "adamw": lambda p: torch.optim.AdamW(p, lr=1.0, betas=(0.0, 0.9), weight_decay=0.0),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1.0, alpha=0.9),
    }.items():
        config = OptimizerConfig(name=name, learning_rate=1.0, betas=(0.0, 0.9), smoothing=0.9)
        weight = torch.zeros(50, dtype=torch.float64, requires_grad=True)
        optimizer = build([weight])
        for step, gradient in enumerate((before, now)):
            state = optimizer.state.get(weight, {})
            moment = state.get("exp_avg_sq", state.get("square_avg"))
            moments = {} if moment is None else {"w": moment.clone()}
            if name == "rmsprop" and moments:  # which starts from zero without correcting for it
                moments["w"] *= 10
                state["square_avg"] *= 10
            start = weight.detach().clone()
            along = in_metric(config, step, {"w": gradient}, moments)["w"]
            weight.grad = gradient.clone()
            optimizer.step()
            torch.testing.assert_close(start - weight.detach(), along, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("made", "changes", "field"),
    [
        (settings, {"engine": {"dtype": "bf16"}, "record_steps": []}, r"engine\.dtype"),
        (settings, {"engine": {"zero_stage": 3}}, r"engine\.zero_stage"),
        (group_settings, {}, r"objective\.designed_dose"),
        (settings, {"objective": designed("batch") | {"negative_dose": 0.3}}, "objective"),
        (settings, {"objective": designed("batch") | {"calibrated": True}}, "objective"),
        (
            group_settings,
            {"objective": {"name": "dpo", "calibrated": True}},
            r"objective\.calibrated",
        ),
    ],
)
def test_what_cannot_be_designed_is_refused_by_name(
    made: Any, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{field}"):
        made(**{"objective": designed("batch")} | changes)


def test_a_batch_of_all_rows_leaves_none_to_protect(inputs: Path, tmp_path: Path) -> None:
    job = make_job(inputs, tmp_path, settings(objective=designed("batch")))
    few = tmp_path / "few.jsonl"
    write_rows(few, list(read_rows(job.examples, Example))[:8])
    with pytest.raises(ConfigError, match=r"^objective\.designed_dose = '8 rows'"):
        check_rows(job.model_copy(update={"examples": few}))
    check_rows(job)


class OneGroupStep:
    """One step on groups with drifted policy and its designer, in float64."""

    def __init__(self, inputs: Path, tmp_path: Path, **dose: Any) -> None:
        objective = {"name": "grpo", "kl": 0.05, "designed_dose": dose}
        config = group_settings(objective=objective, optimizer={"name": "sgd"})
        model = make_job(inputs, tmp_path, config).model
        self.logits = ResponseLogits(load_language_model(model).double().eval())
        self.objective = build_objective(config.objective)
        self.engine = PlainEngine(self.logits, config)
        self.designer = DoseDesigner(config, self.logits, self.objective)

    def batches(self, count: int) -> list[TokenBatch]:
        """Groups of one right answer and three that begin as it does, in so many batches."""
        groups = []
        for number in range(4):
            right = [5 + number, 9, 11, 12]
            answers = [right, *([*right[:3], last] for last in (14, 15, 16))]
            completions = []
            for place, ids in enumerate(answers):
                advantage = torch.full((4,), 0.1 if place == 0 else -1.0, dtype=torch.float64)
                reference = torch.full((4,), -4.0, dtype=torch.float64)
                sequence = Encoded((3, 4, *ids), 2)
                completions.append(Completion(sequence, advantage, reference=reference))
            groups.append(Group(str(number), tuple(completions)))
        size, totals = len(groups) // count, count_group_totals(groups)
        parts = [groups[start : start + size] for start in range(0, len(groups), size)]
        return [collate_groups(part, 0, totals, temperature=0.8) for part in parts]

    def doses(self, batches: list[TokenBatch]) -> list[Tensor]:
        starts = [self.logits(batch, token_logps).detach() for batch in batches]
        return self.designer.design(self.engine, 0, batches, starts, ())

    def effect(self, dose: Tensor, protect: str) -> float:
        """⟨q, −∇loss⟩ under doses, by autograd."""
        (batch,), weights = self.batches(1), list(self.logits.parameters())
        if protect == "entropy":
            logits = self.logits(batch) / batch.temperature
            value = torch.distributions.Categorical(logits=logits).entropy().mean()
        else:
            right = batch.advantage > 0
            value = self.logits(batch, token_logps)[right].sum() / len(batch.ids)
        slope = torch.autograd.grad(value, weights, materialize_grads=True)
        dosed = replace(batch, dose=dose)
        loss = self.objective.loss(self.logits(batch, token_logps), dosed)
        step = torch.autograd.grad(loss, weights, materialize_grads=True)
        return -float(sum((q * g).sum() for q, g in zip(slope, step, strict=True)))


@pytest.mark.parametrize(
    ("protect", "per"),
    [("right", "batch"), ("right", "group"), ("right", "token"), ("entropy", "token")],
)
def test_a_step_on_groups_lowers_neither_right_answers_nor_the_entropy(
    inputs: Path, tmp_path: Path, protect: str, per: str
) -> None:
    one = OneGroupStep(inputs, tmp_path, per=per, protect=protect)
    (batch,) = one.batches(1)
    (dose,) = one.doses([batch])
    full, realised = (one.effect(doses, protect) for doses in (torch.ones_like(dose), dose))
    assert full < 0 and 0 < float(dose.mean()) < 1
    assert realised == pytest.approx(0, abs=1e-4 * abs(full))
    if protect == "right":
        assert bool((dose[batch.advantage > 0] == 1).all())
    apart = torch.cat(one.doses(one.batches(4)))
    torch.testing.assert_close(apart, dose, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("protect", ["right", "entropy"])
def test_a_recorded_step_on_groups_replays_with_its_doses(
    inputs: Path, tmp_path: Path, protect: str
) -> None:
    objective = {"name": "grpo", "designed_dose": {"per": "token", "protect": protect}}
    config = group_settings(objective=objective, steps=2, record_steps=[1], checkpoint_every=0)
    job = run_small(inputs, tmp_path, config)
    record = step_record(job, 1)
    doses = [dose for group in record.examples for one in group.completions for dose in one.dose]
    assert sum(doses) / len(doses) == pytest.approx(metrics(job)[1]["train/dose"], rel=1e-5)
    policy = PolicyFunction(load_language_model(job.model))
    split = split_step(record, policy)
    assert replay_error(split, record) < 3e-4 + 2 * rounding_floor(record)
