"""All arms trained together against one arm trained alone, and what is refused."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from dynolab.chapters.classifiers.labels import FilterTable, distillation, one_hot, seeded_flip
from dynolab.chapters.classifiers.many import (
    ManyModels,
    SGDConfig,
    batch_order,
    train_many,
)
from dynolab.chapters.images import ImageConfig, load_images
from dynolab.chapters.page import select
from dynolab.chapters.supervision.claims import assess_supervision, supervision_table
from dynolab.chapters.supervision.supervision import (
    SupervisionConfig,
    compare_supervision,
    train_teacher,
)
from models.vision import build_classifier
from tests.chapters.plain import train

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


def test_a_seed_s_rows_do_not_depend_on_the_seeds_beside_it(found) -> None:  # type: ignore[no-untyped-def]
    alone, _ = compared(CONFIG, 0.4, (3,))
    together = select(found[0], seed=3).accuracy.to_list()
    assert alone.accuracy.to_list() == pytest.approx(together, abs=0.011)


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
