"""The account of whole trainings: it closes, and its lines are what doses of responses do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dynolab import distributed
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction
from dynolab.forces.function.weights import block_of, flatten
from dynolab.forces.ledger.account import COPIES, Ledger
from dynolab.forces.ledger.entries import StepAccount
from dynolab.forces.ledger.functional import Functional, Slopes, Term, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.hardest_pulls import HARDEST, HardestPulls
from dynolab.forces.ledger.measures import likeliest
from dynolab.forces.ledger.responses import step_responses
from dynolab.forces.ledger.step_account import Later
from dynolab.forces.ledger.stretches import in_stretches
from dynolab.forces.ledger.tables import HardestPull, LedgerTables
from dynolab.objectives import DPOConfig, SFTConfig, build_objective
from dynolab.objectives.policy_gradient import ClippedConfig
from dynolab.results.ledger import PER_STEP
from dynolab.results.ledger_reader import Responses
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.step_record import StepFacts, StepRecord
from tests.forces.brute_ledger import brute_line
from tests.forces.families import ETA, Case, case
from tests.forces.small_models import (
    encoded,
    every_objective,
    llama,
    neox,
    pairs,
    relative,
    train_batches,
    trained,
    with_reference,
)

STEPS = 5
OPTIMIZERS = {
    "sgd": OptimizerConfig(name="sgd", learning_rate=1e-2, weight_decay=0.1),
    "sgd momentum": OptimizerConfig(name="sgd", learning_rate=1e-2, momentum=0.9, weight_decay=0.1),
    "adamw": OptimizerConfig(
        name="adamw", learning_rate=1e-3, betas=(0.8, 0.95), weight_decay=0.1, epsilon=1e-6
    ),
    "rmsprop momentum": OptimizerConfig(
        name="rmsprop", learning_rate=1e-3, momentum=0.8, weight_decay=0.1, epsilon=1e-6
    ),
}
FUNCTIONALS = (
    Functional.mean("chosen", [row.chosen for row in pairs(3)]),
    Functional("another", (Term(encoded(77), 2.0), Term(encoded(78), -0.5))),
    Functional.mean("likeliest", [row.chosen for row in pairs(2)], likeliest),
)


def entries(
    records: Sequence[StepRecord], policy: PolicyFunction, groups: Any = None
) -> list[StepAccount]:
    """The account of records, in the order of the steps."""
    ledger = Ledger(policy, FUNCTIONALS, groups=groups)
    return [ledger.enter(record) for record in reversed(records)][::-1]


def explained(steps: Sequence[StepAccount]) -> Tensor:
    sums = sum(step.lines.sum(0) + step.together + step.decay + step.rounding for step in steps)
    return sums + steps[0].carried_in


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("objective", [DPOConfig(beta=0.5), SFTConfig()], ids=["dpo", "sft"])
def test_lines_decay_and_residual_are_the_whole_change(policy, optimizer, objective):
    records = trained(OPTIMIZERS[optimizer], objective)
    assert any(record.facts.clip_factor < 1 for record in records)
    steps = entries(records, policy)
    path = sum(step.measured.abs() for step in steps)
    whole = steps[-1].after - steps[0].before
    residual = sum(step.residual for step in steps)
    assert ((explained(steps) + residual - whole).abs() / path).max() < 1e-12
    # Training is in float64 as well: the optimizer's formula is all there is.
    assert (sum(step.rounding for step in steps).abs() / path).max() < 1e-6
    assert steps[0].carried_in.abs().max() == 0


def test_the_residual_of_a_step_falls_with_the_third_power_of_the_rate(policy):
    def residual(rate: float) -> Tensor:
        optimizer = OptimizerConfig(name="sgd", learning_rate=rate)
        (step,) = entries(trained(optimizer, steps=1), policy)
        return step.residual[:2]  # the likeliest token may change within a step

    ratio = residual(1e-2) / residual(5e-3)
    torch.testing.assert_close(ratio, torch.full_like(ratio, 8.0), rtol=0.1, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd momentum", "adamw", "rmsprop momentum"])
def test_an_account_of_the_last_steps_names_what_momentum_brought(policy, optimizer):
    records = trained(OPTIMIZERS[optimizer])
    late = entries(records[2:], policy)
    predicted = sum(step.predicted for step in late)
    torch.testing.assert_close(explained(late), predicted, rtol=1e-9, atol=1e-12)
    assert late[0].carried_in.abs().max() > 0
    whole = entries(records, policy)
    for ours, theirs in zip(late, whole[2:], strict=True):
        torch.testing.assert_close(ours.lines, theirs.lines)


@pytest.mark.parametrize(("gap", "beta"), [(1, 0.9), (4, 0.9), (4, 0.0), (7, 0.5)])
def test_steps_between_two_entered_ones_push_in_between(gap, beta):
    """Against the walk through every step, with pushes on a line."""
    first, last, later = torch.randn(3, 2, 5, dtype=torch.float64)
    sensitivity = last + beta * later
    known = Later(sensitivity, last)
    for age in range(gap - 1, -1, -1):
        sensitivity = torch.lerp(first, last, age / gap) + beta * sensitivity
    torch.testing.assert_close(known.sensitivity_before(first, beta, gap), sensitivity)


@pytest.mark.parametrize(
    ("optimizer", "tolerance"), [("sgd", 1e-12), ("sgd momentum", 0.01), ("adamw", 0.12)]
)
def test_an_account_of_some_steps_has_their_lines(policy, optimizer, tolerance):
    """Exactly without momentum; with it up to how pushes between the steps bend.

    Adam's bias correction bends most at the first steps, which these are.
    """
    records = trained(OPTIMIZERS[optimizer])
    whole = entries(records, policy)
    ledger = Ledger(policy, FUNCTIONALS[:2], every_step=False)
    for step, gap in ((4, 1), (2, 2), (0, 2)):
        own, true = ledger.enter(records[step], gap=gap).lines, whole[step].lines[:, :2]
        assert (own - true).norm() <= tolerance * true.norm()


class LedgerOnLines(Ledger):
    """Every step has slopes, which between weights `spacing` steps apart are put on a line."""

    def __init__(self, records: Sequence[StepRecord], policy: PolicyFunction, spacing: int) -> None:
        super().__init__(policy, FUNCTIONALS)
        self.spacing, self.weights = spacing, [record.before for record in records]
        self.weights.append(records[-1].after)

    def _slopes(self, rows: range, record: StepRecord, at: Any) -> Slopes:
        state = record.facts.step + (at is record.after)
        last = len(self.weights) - 1
        # Stretches are counted from the last step.
        end = last - (last - state) // self.spacing * self.spacing
        start = max(0, end - self.spacing)
        here = super()._slopes(rows, record, at)
        if state in (start, end):
            return here
        start_slope = super()._slopes(rows, record, self.weights[start]).gradients
        end_slope = super()._slopes(rows, record, self.weights[end]).gradients
        share = (state - start) / (end - start)
        return replace(here, gradients=torch.lerp(start_slope, end_slope, share))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("spacing", [2, 3, 5])
def test_slopes_of_a_stretch_lie_on_a_line(policy, optimizer, spacing):
    """Against slopes at every step that were put there; the account of a stretch still closes."""
    records = trained(OPTIMIZERS[optimizer])
    slow = LedgerOnLines(records, policy, spacing)
    expected = [slow.enter(record) for record in reversed(records)]
    ledger = Ledger(policy, FUNCTIONALS, by_token=[0])
    steps = [
        ledger.enter(record, stretch=stretch)
        for record, stretch in in_stretches(reversed(records), spacing)
    ]
    for ours, theirs in zip(steps, expected, strict=True):
        for name in ("lines", "together", "decay", "rounding", "carried_in", "predicted"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
    # The papers' measures need both ends of a step: of a last stretch of one step.
    assert sum(bool(step.sources) for step in steps) == (STEPS % spacing == 1)
    measured = sum(step.measured for step in steps)
    path = sum(step.measured.abs() for step in steps)
    real = expected[0].after - expected[-1].before
    assert ((measured - real).abs() / path).max() < 1e-12
    residual = sum(step.residual for step in steps)
    assert ((explained(steps[::-1]) + residual - real).abs() / path).max() < 1e-12


@pytest.mark.parametrize("clip_norm", [0.5, 10.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_line_is_what_leaving_the_response_out_does_at_once_and_later(
    policy, optimizer, clip_norm
):
    """torch's own steps and forwards only: central differences at both ends of every step."""
    records = trained(OPTIMIZERS[optimizer], steps=4, clip_norm=clip_norm)
    groups = {"two pairs": ["pair-1", "pair-2"]}
    steps = entries(records[:3], policy, groups)
    for cause in (0, 2):
        for response in (0, 3):
            brute = brute_line(policy, FUNCTIONALS, records, cause, [response])
            torch.testing.assert_close(steps[cause].lines[response], brute, rtol=1e-6, atol=1e-9)
        brute = brute_line(policy, FUNCTIONALS, records, cause, range(2, 6))
        group = steps[cause].groups["two pairs"]
        torch.testing.assert_close(group, brute, rtol=1e-6, atol=1e-9)
        if optimizer in ("adamw", "rmsprop momentum"):
            assert relative(steps[cause].lines[2:6].sum(0), brute) > 1e-3


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_only_response_of_a_step_is_all_that_it_does(policy, optimizer):
    """Without it the gradient is zero: nothing divides by nothing, and nothing is left over."""
    records = trained(OPTIMIZERS[optimizer], SFTConfig(), steps=2, count=1)
    for step in entries(records, policy, {"all": ["pair-0"], "none": []}):
        torch.testing.assert_close(step.groups["all"], step.lines[0])
        assert "none" not in step.groups
        assert step.lines.isfinite().all() and step.together.isfinite().all()
    if optimizer != "rmsprop momentum":  # which would divide its decay by less
        assert (entries(records[:1], policy)[0].together.abs() <= 1e-12).all()


@pytest.mark.parametrize("optimizer", ["sgd momentum", "adamw", "rmsprop momentum"])
def test_a_line_does_not_depend_on_how_responses_are_batched(optimizer):
    """In float32, with the first step, where some of Adam's gradients are as small as rounding."""
    model = neox(dtype=torch.float32)
    config = OPTIMIZERS[optimizer].model_copy(update={"epsilon": 1e-12})
    records = trained(config, model=model, steps=2)
    assert moved_lines(records, PolicyFunction(model, torch.float32), FUNCTIONALS) < 1e-4


def moved_lines(
    records: Sequence[StepRecord], policy: PolicyFunction, functionals: Sequence[Functional]
) -> float:
    """Most that a line moves, over the mean line of its step, in other batches and orders, and on
    two threads."""

    def lines(batch_tokens: int, order: int = 1) -> Tensor:
        ledger = Ledger(policy, functionals, batch_tokens=batch_tokens)
        steps = [replace(record, examples=record.examples[::order]) for record in records[::-1]]
        entered = [ledger.enter(step) for step in steps]
        labels = [[(label.id, label.side) for label in step.responses] for step in entered]
        places = [sorted(range(len(own)), key=own.__getitem__) for own in labels]
        return torch.stack([step.lines[own] for step, own in zip(entered, places, strict=True)])

    first, threads = lines(16_384), torch.get_num_threads()
    others = [lines(16), lines(40), lines(40, -1)]
    torch.set_num_threads(3 - min(2, threads))
    others.append(lines(16_384))
    torch.set_num_threads(threads)
    mean = first.abs().mean((1, 2), keepdim=True)
    return max(float(((other - first).abs() / mean).max()) for other in others)


def test_a_functional_is_its_answers_weighted_log_probabilities(policy):
    model = neox()
    at = {name: p.detach() for name, p in model.named_parameters()}
    gradients = GroupedGradients.build(policy, at, [encoded(1), encoded(2)])
    one = slopes_of(FUNCTIONALS, gradients, at, batch_tokens=8)
    many = slopes_of(FUNCTIONALS, gradients, at)
    torch.testing.assert_close(one.gradients, many.gradients)
    by_hand = [2.0 * logp(policy, encoded(77)) - 0.5 * logp(policy, encoded(78))]
    assert one.values[1].item() == pytest.approx(by_hand[0])
    best = sum(greedy(policy, row.chosen) for row in pairs(2)) / 2
    assert one.values[2].item() == pytest.approx(best)


@pytest.mark.parametrize("batch_tokens", [8, 64])
def test_what_ranks_read_adds_up(policy, batch_tokens, monkeypatch):
    """Of five ranks some have no answer in a pass, and make it all the same."""
    model = neox()
    at = {name: p.detach() for name, p in model.named_parameters()}
    gradients = GroupedGradients.build(policy, at, [encoded(1), encoded(2)])
    whole = slopes_of(FUNCTIONALS, gradients, at)
    values, into = torch.zeros_like(whole.values), torch.zeros_like(whole.gradients)
    passes, usual = [0] * 5, policy.batch

    def batch(sequences):
        passes[distributed.rank()] += 1
        return usual(sequences)

    monkeypatch.setattr(policy, "batch", batch)
    monkeypatch.setattr(distributed, "world_size", lambda: 5)
    for rank in range(5):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        values += slopes_of(
            FUNCTIONALS, gradients, at, batch_tokens=batch_tokens, into=into, dealt=True
        ).values
    torch.testing.assert_close(values, whole.values)
    torch.testing.assert_close(into, whole.gradients)
    assert len(set(passes)) == 1


def logp(policy: PolicyFunction, sequence) -> float:
    return float(policy.logps({}, policy.batch([sequence])).sum())


def greedy(policy: PolicyFunction, sequence) -> float:
    logits = policy.logits({}, policy.batch([sequence]))
    return float(torch.log_softmax(logits, -1).amax(-1).sum())


def test_records_that_do_not_follow_each_other_are_refused(policy):
    records = trained(OPTIMIZERS["sgd"])
    with pytest.raises(ConfigError, match=r"after this step are not those before step 4"):
        entries([records[0], records[4]], policy)


def test_a_gap_in_a_ledger_of_all_steps_is_refused(policy):
    with pytest.raises(ConfigError, match=r"gap = 2: must be 1 where every step is entered"):
        Ledger(policy, FUNCTIONALS).enter(trained(OPTIMIZERS["sgd"], steps=1)[0], gap=2)


def test_in_float32_the_account_closes_to_rounding():
    model = llama()
    records = trained(OPTIMIZERS["adamw"], model=model)
    steps = entries(records, PolicyFunction(model))
    path = sum(step.measured.abs() for step in steps)
    predicted = sum(step.predicted for step in steps)
    assert ((explained(steps) - predicted).abs() / path).max() < 1e-6
    rounding = sum(step.rounding for step in steps).abs() / path
    assert 0 < rounding.max() < 1e-5


def test_a_ledger_goes_on_from_what_it_saved(policy, tmp_path):
    records = trained(OPTIMIZERS["adamw"])
    whole = entries(records, policy)
    first, second = Ledger(policy, FUNCTIONALS), Ledger(policy, FUNCTIONALS)
    for record in reversed(records[2:]):
        first.enter(record)
    first.save(tmp_path)
    second.load(tmp_path)
    for step in (1, 0):
        again = second.enter(records[step])
        assert torch.equal(again.lines, whole[step].lines)
        assert torch.equal(again.rounding, whole[step].rounding)


@pytest.mark.parametrize(
    ("at_once", "gaps", "spacing"),
    [(1, (1, 1, 1, 1, 1), 1), (2, (1, 2, 2), 1), (1, (1, 1, 1, 1, 1), 2)],
    ids=["whole", "drawn", "spaced"],
)
def test_functionals_that_take_turns_have_the_same_account(
    policy, tmp_path, at_once, gaps, spacing
):
    """Entry by entry and token by token; also where the ledger is ended on the way."""
    records, whole = trained(OPTIMIZERS["adamw"]), len(gaps) == STEPS
    settings = {"by_token": [0, 2], "every_step": whole}
    copies = COPIES + (not whole)
    memory = at_once * copies * flatten(policy.cast(records[0].before)).nbytes

    def turns(folder: str) -> Ledger:
        waiting = tmp_path / folder
        return Ledger(policy, FUNCTIONALS, **settings, waiting=waiting, memory_bytes=memory)

    together, apart = Ledger(policy, FUNCTIONALS, **settings), turns("first")
    steps = [STEPS - sum(gaps[: number + 1]) for number in range(len(gaps))]
    entered = in_stretches([records[step] for step in steps], spacing)
    for number, (gap, (record, stretch)) in enumerate(zip(gaps, entered, strict=True)):
        if number == 2:
            apart.save(tmp_path / "saved")
            apart = turns("second")
            apart.load(tmp_path / "saved")
        expected, account = (
            ledger.enter(record, gap=gap, stretch=stretch) for ledger in (together, apart)
        )
        assert account.responses == expected.responses
        for name in ("lines", "carried_in", *PER_STEP):
            same(getattr(account, name), getattr(expected, name))
        assert account.blocks.keys() == expected.blocks.keys()
        for block, sums in expected.blocks.items():
            same(account.blocks[block], sums)
        for own, theirs in zip(account.tokens, expected.tokens, strict=True):
            assert (own.response, own.functional) == (theirs.response, theirs.functional)
            same(own.nats, theirs.nats)
    assert len(list((tmp_path / "second").glob("sensitivity-*"))) == len(FUNCTIONALS)


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("optimizer", ["sgd momentum", "adamw"])
def test_the_hardest_pulls_are_split_into_tokens_that_add_up_to_them(policy, optimizer):
    ledger, pulls, split = Ledger(policy, FUNCTIONALS, by_token=[0, 2]), {0: {}, 2: {}}, set()
    for record in reversed(trained(OPTIMIZERS[optimizer])):
        step = ledger.enter(record)
        for functional, own in pulls.items():
            for response, nats in zip(step.responses, step.lines[:, functional], strict=True):
                key = step.step, response.id
                own[key] = own.get(key, 0.0) + float(nats)
        for tokens in step.tokens:
            response, line = step.responses[tokens.response], step.lines[:, tokens.functional]
            same_example = [other.id == response.id for other in step.responses]
            assert line[same_example].min() == line[tokens.response]
            assert len(tokens.nats) == len(response.tokens)
            torch.testing.assert_close(tokens.nats.sum(), line[tokens.response])
            split.add((tokens.functional, step.step, response.id))
    for functional, own in pulls.items():
        hardest = sorted((key for key in own if own[key] < 0), key=own.__getitem__)[:HARDEST]
        assert {(functional, *key) for key in hardest} <= split


def test_tables_name_the_hardest_pull_on_what_fell_most(policy):
    names = [functional.name for functional in FUNCTIONALS]
    ledger, tables = Ledger(policy, FUNCTIONALS), LedgerTables(names)
    assert tables.hardest_pull(names, 100) is None
    changed, lines, tokens = torch.zeros(len(names)), {}, {}
    for record in reversed(trained(OPTIMIZERS["sgd momentum"])):
        step = ledger.enter(record)
        tables.add(step)
        changed += step.measured
        for response, nats in zip(step.responses, step.lines, strict=True):
            key = response.id, step.step
            lines[key] = lines.get(key, 0.0) + nats
            tokens[response.id] = max(tokens.get(response.id, 0), len(response.tokens))
    worst = int(changed.argmin())
    assert changed[worst] < 0

    def hardest(examples: Collection[str]) -> HardestPull:
        of = dict.fromkeys(examples, 0.0)
        for (name, _), nats in lines.items():
            if name in of:
                of[name] += float(nats[worst])
        puller = min(of, key=of.__getitem__)
        pulls = {at: float(nats[worst]) for (name, at), nats in lines.items() if name == puller}
        return HardestPull(names[worst], puller, min(pulls, key=pulls.__getitem__))

    assert tables.hardest_pull(names, 100) == hardest(tokens)
    room = sorted(tokens.values())[len(tokens) // 2] - 1
    short = [name for name in tokens if tokens[name] <= room]
    assert tables.hardest_pull(names, room) == hardest(short or tokens)
    assert tables.hardest_pull(names, 0) == hardest(tokens)  # none is that short


def test_pulls_are_split_while_they_are_among_the_hardest():
    """An example's lines of a step are one pull, and its line that pulls harder is split."""
    pulls = HardestPulls()
    assert pulls.enter(torch.tensor([1.0, -3.0, -0.5, 0.25]), ["a", "a", "b", "b"]) == [1, 2]
    assert pulls.nats[:2].tolist() == [-2.0, -0.25]
    pulls.enter(-torch.arange(1.0, HARDEST + 1), list(map(str, range(HARDEST))))
    assert pulls.enter(torch.tensor([-0.5, -4.0]), ["c", "d"]) == [1]
    assert pulls.enter(torch.tensor([-2.5]), ["e"]) == [0]
    again = HardestPulls(pulls.nats)
    assert again.enter(torch.tensor([-0.5, -4.0]), ["c", "d"]) == [1]


@pytest.mark.parametrize("optimizer", ["sgd momentum", "adamw"])
def test_blocks_of_parameters_add_up_to_the_sums_of_both_sides(policy, optimizer):
    for step in entries(trained(OPTIMIZERS[optimizer]), policy):
        assert {"embed_in", "layers.0", "layers.1", "final_layer_norm"} <= set(step.blocks)
        sides = torch.stack([step.parts()[side] for side in ("chosen", "rejected")], 1)
        torch.testing.assert_close(sum(step.blocks.values()), sides)


def test_a_block_is_a_layer_or_a_module_beside_the_layers():
    assert block_of("gpt_neox.layers.3.mlp.dense.weight") == "layers.3"
    assert block_of("base_model.model.model.layers.11.q_proj.lora_A.default.weight") == "layers.11"
    assert block_of("model.embed_tokens.weight") == "embed_tokens"


CASES = [
    (config, temperature)
    for config in every_objective()
    for temperature in ([1.0, 0.7] if isinstance(config, ClippedConfig) else [1.0])
]


@pytest.fixture(scope="module")
def pairs_of_llama() -> Case:
    return case("llama_tied", count=3)


@pytest.mark.parametrize(("config", "temperature"), CASES, ids=repr)
def test_the_responses_of_every_objective_make_up_its_gradient(pairs_of_llama, config, temperature):
    """Losses that read likelier tokens, and those at other temperatures, as well."""
    here, objective = pairs_of_llama, build_objective(config)
    facts = StepFacts(
        step=0,
        learning_rate=ETA,
        grad_norm=1.0,
        clip_factor=1.0,
        objective=config,
        optimizer=OptimizerConfig(name="sgd"),
    )
    weights = here.policy.weights
    record = StepRecord(facts, tuple(here.updating(objective, temperature)), weights, weights, {})
    gradients = GroupedGradients.build(here.policy, weights, [encoded(1), encoded(2)])
    whole = step_responses(record, gradients)
    split = step_responses(record, gradients, batch_tokens=16)
    truth = -flatten(here.descent(objective, temperature)) / ETA
    torch.testing.assert_close(whole.gradients.sum(0), truth, rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(split.gradients, whole.gradients, rtol=1e-8, atol=1e-12)
    for label, response in zip(whole.labels, whole.weighted, strict=True):
        assert label.tokens == response.sequence.ids[response.sequence.prompt_length :]


def test_with_places_filled_forecasts_are_nearer_to_trainings_on_fewer_rows(policy):
    """Batches hold all rows, so that fewer rows are the same batches with their places filled."""
    model = neox()
    rows = with_reference(model, pairs(8))
    config = TrainConfig(objective=DPOConfig(beta=0.5), optimizer=OPTIMIZERS["sgd momentum"])

    def train(without: Collection[str] = ()) -> list[StepRecord]:
        rest = [row for row in rows if row.id not in without]
        return list(train_batches(neox(), config, [rest] * 3))

    batch = policy.batch([row.chosen for row in rows])

    def ends(records: Sequence[StepRecord]) -> np.ndarray:
        return batch.sequence_sum(policy.logps(policy.cast(records[-1].after), batch)).numpy()

    records = train()
    ledger = Ledger(policy, [Functional.mean(row.id, [row.chosen]) for row in rows])
    steps = [ledger.enter(record) for record in reversed(records)]
    labels = [label for step in steps for label in step.responses]
    ids, sides = (np.array([getattr(label, part) for label in labels]) for part in ("id", "side"))
    numbers = np.repeat([step.step for step in steps], len(labels) // len(steps))
    lines = torch.cat([step.lines for step in steps]).numpy()
    plain, filled, measured = [], [], []
    for first in range(5):
        without = {row.id for row in rows[first : first + 3]}
        measured.append(ends(train(without)) - ends(records))
        plain.append(-lines[np.isin(ids, list(without))].sum(0))
        filled.append(plain[-1] + Responses(ids, sides, numbers).refilled(lines, without))
    size, right = np.linalg.norm(measured), np.mean(np.sign(filled) == np.sign(measured))
    error, former = (np.linalg.norm(np.array(forecast) - measured) for forecast in (filled, plain))
    assert right > 0.95 and error < 0.25 * size and error < 0.5 * former
