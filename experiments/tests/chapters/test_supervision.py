"""All arms trained together against one arm trained alone; accumulated influence against every
pair's own product, and against what training did."""

from __future__ import annotations

from functools import partial

import pandas as pd
import pytest
import torch

from experiments.chapters.classifiers.labels import FilterTable, distillation, one_hot, seeded_flip
from experiments.chapters.classifiers.many import (
    ManyModels,
    SGDConfig,
    batch_order,
    train_many,
)
from experiments.chapters.images import ImageConfig, load_images
from experiments.chapters.page import select
from experiments.chapters.supervision.claims import assess_supervision, supervision_table
from experiments.chapters.supervision.speeds import (
    SpeedConfig,
    Toy,
    accumulate,
    coherent_and_contradictory,
    compare_speeds,
    train_alone,
)
from experiments.chapters.supervision.supervision import (
    SupervisionConfig,
    compare_supervision,
    train_teacher,
)
from experiments.chapters.vision import build_classifier
from experiments.tests.chapters.plain import train

DATA = load_images(ImageConfig(train=120, validation=40, test=100))
CONFIG = SupervisionConfig(training=SGDConfig(learning_rate=0.1, epochs=4))
SEEDS = (0, 3)


def build(seed: int):  # type: ignore[no-untyped-def]
    return build_classifier("mlp", DATA.train.shape, DATA.classes, seed)


@pytest.fixture(scope="module")
def found():  # type: ignore[no-untyped-def]
    return compared(CONFIG, 0.4, SEEDS)


def compared(config, noise, seeds, data=DATA):  # type: ignore[no-untyped-def]
    tables = compare_supervision(build, data, config, noise, seeds)
    return [pd.DataFrame(tables[name]) for name in ("supervision", "detections")]


def accuracy(model) -> float:  # type: ignore[no-untyped-def]
    with torch.no_grad():
        right = model(DATA.test.pixels).argmax(-1) == DATA.test.labels
    return float(right.float().mean())


def test_filter_kd_written_out_for_one_seed_gives_the_same_student(found) -> None:  # type: ignore[no-untyped-def]
    seed = 3
    given = seeded_flip(DATA.train.labels, 10, 0.4, seed).given
    order = batch_order(120, CONFIG.training, seed)
    teacher, student = build(seed), build(seed)
    table = FilterTable(120, 10)
    for rows in order:
        with torch.no_grad():
            table.visit(rows, teacher(DATA.train.pixels[rows]).softmax(-1))
        train(teacher, DATA.train.pixels, given, rows[None], CONFIG.training)
    targets = table.targets(one_hot(given, 10))
    train(student, DATA.train.pixels, targets, order, CONFIG.training, distillation)
    by_arm = select(found[0], seed=seed).set_index("arm")
    assert by_arm.accuracy["one_hot"] == pytest.approx(accuracy(teacher), abs=0.011)
    assert by_arm.accuracy["filter_kd"] == pytest.approx(accuracy(student), abs=0.011)
    error = (targets - one_hot(DATA.train.labels, 10)).norm(dim=1).mean()
    assert by_arm.target_error["filter_kd"] == pytest.approx(float(error), abs=1e-3)


def test_every_arm_is_measured_for_every_seed(found) -> None:  # type: ignore[no-untyped-def]
    table = supervision_table(found[0], 0.4)
    assert all(table.mean(arm, "accuracy").n == 2 for arm in ("one_hot", "kd", "filter_kd"))
    hard = found[0][found[0].arm.isin(["one_hot", "early_stopping"])]
    # The given labels are off by √2 where they are wrong.
    assert hard.target_error.to_list() == pytest.approx([0.4 * 2**0.5] * 4)
    assert set(found[1].score) == {"filter", "path", "last", "zigzag"}


def test_every_score_is_higher_where_a_label_is_wrong() -> None:
    data = load_images(ImageConfig(train=600, validation=40, test=100))
    longer = SupervisionConfig(training=SGDConfig(learning_rate=0.1, epochs=10))
    _, detections = compared(longer, 0.4, (0,), data)
    assert len(detections) == 4
    assert (detections.auc > 0.7).all()


def test_the_teacher_keeps_its_best_weights_and_its_path() -> None:
    hard = one_hot(torch.stack([DATA.train.labels]), 10)
    orders = batch_order(120, CONFIG.training, 0)[None]
    checks = DATA.validation.labels[None]
    many = ManyModels([build(0)])
    teacher = train_teacher(
        many, DATA.train.pixels, hard, orders, CONFIG, DATA.validation.pixels, checks
    )
    again, states = ManyModels([build(0)]), []
    for step in train_many(again, DATA.train.pixels, hard, orders, CONFIG.training):
        if step.number % 3 == 0:
            right = again.logits(DATA.validation.pixels).argmax(-1)[0] == checks[0]
            states.append((float(right.float().mean()), dict(again.weights)))
    _, kept = max(states, key=lambda state: state[0])
    for name, w in kept.items():
        torch.testing.assert_close(teacher.early_weights[name], w)
    assert teacher.path.shape == (4, 1, 120, 10)
    visited = teacher.path.isfinite().all(-1)
    assert visited.sum().item() == 4 * 96  # three full batches of 32 an epoch


def test_without_noise_there_is_nothing_to_detect() -> None:
    rows, detections = compared(CONFIG, 0.0, (0,))
    assert detections.empty
    assert rows.believed_wrong.isna().all()


def test_claims_of_one_seed_are_unclear_and_none_is_lost(found) -> None:  # type: ignore[no-untyped-def]
    nothing = pd.DataFrame()
    verdicts = assess_supervision(select(found[0], seed=3), nothing, nothing, nothing)
    assert {verdict.outcome for verdict in verdicts if verdict.measured} == {"unclear"}
    assert verdicts[0].id == "supervision/0.4/filter_kd_over_one_hot"


def small(steps: int, learning_rate: float):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)
        ).double()
    inputs = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (8,), generator=generator)
    groups = torch.arange(8) % 2
    found = accumulate(model, inputs, labels, groups, steps=steps, learning_rate=learning_rate)
    return model, inputs, labels, groups, found


def test_one_step_s_influences_are_the_products_of_all_pairs_gradients() -> None:
    model, inputs, labels, groups, found = small(1, 0.5)

    def gradient(i: int) -> torch.Tensor:
        logp = model(inputs[i : i + 1])[0].log_softmax(-1)[labels[i]]
        return torch.cat([g.flatten() for g in torch.autograd.grad(logp, model.parameters())])

    each = torch.stack([gradient(i) for i in range(8)])
    pairs = 0.5 / 8 * each @ each.T
    torch.testing.assert_close(found.own[1], pairs.diagonal())
    for group in (0, 1):
        others = pairs[:, groups == group].sum(1) - pairs.diagonal() * (groups == group)
        torch.testing.assert_close(found.from_groups[1, :, group], others)
    torch.testing.assert_close(found.total[1], pairs.sum(1))


def test_small_steps_accumulate_to_what_training_did() -> None:
    errors = []
    for steps, learning_rate in ((400, 0.01), (100, 0.04)):
        *_, influence = small(steps, learning_rate)
        assert influence.measured.shape == (steps + 1, 8)
        measured = influence.measured[-1]
        errors.append((influence.total[-1] - measured).norm() / measured.norm())
    assert errors[0] < 0.01
    assert 3 < errors[1] / errors[0] < 5  # the error is of first order in the step's size


def test_a_group_alone_takes_the_steps_that_it_takes_among_all() -> None:
    model, inputs, labels, _, found = small(5, 0.2)
    everyone = Toy(("all", "none"), inputs, labels, torch.zeros(8, dtype=torch.long), 3)
    alone = train_alone(model, everyone, 0, steps=5, learning_rate=0.2)
    torch.testing.assert_close(alone, found.measured.mean(1))
    half = Toy(("first", "second"), inputs, labels, torch.arange(8) // 4, 3)
    alone = train_alone(model, half, 0, steps=5, learning_rate=0.2)
    few = accumulate(
        model, inputs[:4], labels[:4], torch.zeros(4, dtype=torch.long), steps=5, learning_rate=0.1
    )
    torch.testing.assert_close(alone, few.measured.mean(1))


def test_the_pair_toy_differs_in_agreement_alone() -> None:
    toy = coherent_and_contradictory(50, torch.Generator().manual_seed(0))
    first, second = toy.labels[:50], toy.labels[50:]
    assert torch.equal(first == second, toy.groups[:50] == 0)
    assert torch.equal(toy.groups[:50], toy.groups[50:])
    between = (toy.inputs[:50] - toy.inputs[50:]).norm(dim=1)
    assert between.max() < torch.pdist(toy.inputs[:50]).min()


def test_the_comparisons_give_every_kind_and_seed_and_sums_that_add_up() -> None:
    data = load_images(ImageConfig(train=60, validation=10, test=10))
    config = SpeedConfig(examples=40, steps=6, points=3)

    of_vectors = partial(build_classifier, "mlp")
    rows = compare_speeds(of_vectors, data.train, 10, config, (0, 1))
    assert (len(rows), len({(row["contrast"], row["kind"]) for row in rows})) == (8, 4)
    for row in rows:
        assert row["steps"] == [0, 3, 6]
        parts = torch.tensor([row[name] for name in ("own", "from_alike", "from_others")])
        assert torch.allclose(parts.sum(0), torch.tensor(row["influence"]), atol=1e-5)
        assert row["kind"] != "clean" or row["speed"] > 0
        assert abs(row["speed"] - row["first_order"]) < 0.1 * abs(row["speed"]) + 0.01
        assert row["alone"][0] == 0
    clean = config.model_copy(update={"noise": 0.0})
    contrasts = {row["contrast"] for row in compare_speeds(of_vectors, data.train, 10, clean, (0,))}
    assert "clean-noisy" not in contrasts
