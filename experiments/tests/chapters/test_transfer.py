"""Tasks out of classes and of generated texts, and heads probed and finetuned together against one
by one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from dynolab.errors import ConfigError
from experiments.chapters.classifiers.labels import one_hot
from experiments.chapters.classifiers.many import SGDConfig, batch_order, seed_for
from experiments.chapters.images import ImageConfig, load_images
from experiments.chapters.page import select
from experiments.chapters.transfer.page import (
    ELSEWHERE,
    assess_transfer,
    by_tau,
    picked_on_others,
    with_tests,
)
from experiments.chapters.transfer.task import (
    COMMON,
    FIELDS,
    TOPICS,
    TopicConfig,
    bags,
    check_classes,
    generate,
    image_task,
    rotated,
    shifted,
    topic_task,
    vocabulary,
)
from experiments.chapters.transfer.transfer import ProbingConfig, TransferConfig, compare_heads
from experiments.chapters.vision import build_classifier
from experiments.tests.chapters.plain import train

DATA = load_images(ImageConfig(train=200, validation=20, test=200))
build = partial(build_classifier, "mlp")
TASK = image_task(DATA, (0, 1, 2, 3, 4), seed=0)
CONFIG = TransferConfig(
    pretraining=SGDConfig(learning_rate=0.1, epochs=3),
    examples=40,
    taus=(0, 2, 6),
    probing=ProbingConfig(learning_rate=0.1, batch_size=20),
    finetuning=SGDConfig(learning_rate=0.1, batch_size=20, epochs=3),
)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.DataFrame(compare_heads(build, TASK, CONFIG, (0, 5)))


def test_one_network_carried_over_by_hand_ends_the_same(rows: pd.DataFrame) -> None:
    seed = 5
    network = build((1, 8, 8), 5, seed)
    order = batch_order(len(TASK.first.labels), CONFIG.pretraining, seed)
    train(network, TASK.first.inputs, TASK.first.labels, order, CONFIG.pretraining)
    second = build((1, 8, 8), 5, seed_for("second task", seed))
    second.body.load_state_dict(network.body.state_dict())
    drawn = TASK.draw(40, seed)
    inputs, labels = TASK.pool.inputs[drawn], TASK.pool.labels[drawn]
    with torch.no_grad():
        features = second.features(inputs)
    # Two epochs of the longest schedule's order, which shorter probing shares.
    schedule = CONFIG.probing.schedule(6)
    train(second.head, features, labels, batch_order(40, schedule, seed)[:4], schedule)
    with torch.no_grad():
        gap = one_hot(labels, 5) - second(inputs).softmax(-1)
    train(second, inputs, labels, batch_order(40, CONFIG.finetuning, seed), CONFIG.finetuning)
    with torch.no_grad():
        moved = (second.features(inputs) - features).norm(dim=1).mean()
        right = second(TASK.test.inputs).argmax(-1) == TASK.test.labels
    (row,) = select(rows, strategy="linear", tau=2, seed=seed).itertuples()
    assert row.energy == pytest.approx(float(gap.norm(dim=1).mean()), abs=1e-4)
    assert row.distance == pytest.approx(float(moved), rel=1e-3)
    assert row.accuracy == pytest.approx(float(right.float().mean()), abs=0.011)


def test_every_strategy_tau_and_seed_has_its_row(rows: pd.DataFrame) -> None:
    own = rows.set_index(["strategy", "tau", "seed"])
    assert len(own) == own.index.nunique() == 4 * 3 * 2
    assert all(set(changed) == {"shifted", "rotated", "noisy"} for changed in rows.elsewhere)
    # Before any probing, what the head is probed with has done nothing yet.
    assert own.loc["smoothed", 0, 0].equals(own.loc["linear", 0, 0])
    assert own.energy["smoothed", 6, 0] > own.energy["linear", 6, 0]
    assert own.distance["reinitialised", 0, 0] != own.distance["linear", 0, 0]


def test_accuracies_elsewhere_are_means_by_tau_and_seed(rows: pd.DataFrame) -> None:
    linear = select(with_tests(rows), strategy="linear")
    each = np.mean([by_tau(linear, test) for test in TASK.elsewhere], axis=0)
    assert each.shape == (3, 2)
    np.testing.assert_allclose(by_tau(linear, ELSEWHERE), each)
    verdicts = assess_transfer(rows)
    outcomes = {verdict.id: verdict.outcome for verdict in verdicts}
    assert len(outcomes) == len(verdicts)
    assert outcomes["digits/energy"] != "not measured"


def test_a_tau_is_picked_on_the_other_seeds() -> None:
    values = np.array([[0.0, 5.0, 1.0], [2.0, 0.0, 2.0]])
    # Seed 0 sees the others' means 3 and 1, seed 1 sees 0.5 and 2, seed 2 sees 2.5 and 1.
    assert picked_on_others(values, (0, 1)).tolist() == [0.0, 0.0, 1.0]
    assert np.isnan(picked_on_others(values[:, :1], (0, 1))).all()


def test_the_second_task_s_classes_are_counted_anew_and_none_of_the_first_is_in_it() -> None:
    task = image_task(DATA, (9, 0), seed=0)
    assert (task.first_classes, task.classes) == (2, 8)
    assert set(task.first.labels.tolist()) == {0, 1}
    for digit, own, label in ((9, task.first, 0), (8, task.pool, 7)):
        of_digit = DATA.train.pixels[DATA.train.labels == digit]
        torch.testing.assert_close(own.inputs[own.labels == label], of_digit)


def test_images_elsewhere_are_moved_as_said() -> None:
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 2, 3] = 1
    assert shifted(image).nonzero().tolist() == [[0, 0, 3, 4]] and shifted(image).sum() == 1
    torch.testing.assert_close(rotated(image, 0.0), image)
    quarter = rotated(image, 90.0)
    assert quarter.max() == pytest.approx(1, abs=1e-4)
    assert quarter[0, 0, 2, 3] == pytest.approx(0, abs=1e-4)


def test_topics_make_a_task_whose_test_texts_are_not_in_training() -> None:
    task = topic_task(TopicConfig(texts=600), (0, 3, 6, 9))
    assert (task.first_classes, task.classes) == (4, 8)
    assert set(task.elsewhere) == {"shortened", "mixed"}
    assert all(changed.shape == task.test.inputs.shape for changed in task.elsewhere.values())
    known, tested = (
        {tuple(text.tolist()) for text in own.inputs} for own in (task.pool, task.test)
    )
    assert not known & tested
    assert (task.elsewhere["shortened"] > 0).sum() < (task.test.inputs > 0).sum()


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ((0, 10), "name classes of 0 … 9"),
        ((0, 0), "each once"),
        ((0,), "both tasks need two"),
        (tuple(range(9)), "both tasks need two"),
        ((-1, 0), "name classes of 0 … 9"),
    ],
)
def test_classes_that_make_no_two_tasks_are_refused(first, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        check_classes(first, 10, "first_digits")


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (1000, "examples = 1000: the second task of digits has"),
        (4, "no example of class"),
    ],
)
def test_too_few_examples_and_classes_without_one_are_refused(examples: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TASK.draw(examples, 0)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"taus": (4, 1)}, "taus"),
        ({"taus": (-1, 2)}, "taus"),
        ({"taus": (1, 1)}, "taus"),
        ({"strategies": ("smoothed",)}, "strategies"),
    ],
)
def test_taus_that_do_not_rise_and_strategies_without_the_linear_one_are_refused(
    settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError, match=field):
        TransferConfig(**settings)


def test_generated_texts_take_turns_and_speak_of_their_topic() -> None:
    texts, labels = generate(TopicConfig(texts=1200))
    assert np.bincount(labels).tolist() == [100] * 12
    words = [own for _, own in TOPICS.values()]
    own = [
        np.mean([word in words[label] for word in text])
        for text, label in zip(texts, labels, strict=True)
    ]
    assert np.mean(own) == pytest.approx(0.15, abs=0.01)
    assert generate(TopicConfig(texts=1200))[0] == texts
    assert generate(TopicConfig(texts=1200, seed=1))[0] != texts


def test_a_topic_s_words_are_nobody_else_s() -> None:
    groups = [*FIELDS.values(), COMMON, *(words for _, words in TOPICS.values())]
    every = [word for group in groups for word in group]
    assert len(set(every)) == len(every)
    assert {field for field, _ in TOPICS.values()} == set(FIELDS)


def test_bags_count_known_words_and_have_length_one() -> None:
    texts = [["b", "a", "b"], ["c"], []]
    places = vocabulary(texts, 2)
    assert places == {"b": 0, "a": 1}
    found = bags(texts, places)
    np.testing.assert_allclose(found, [[2 / 5**0.5, 1 / 5**0.5], [0, 0], [0, 0]], rtol=1e-6)
