"""Generated texts with topics, and bags of words."""

from __future__ import annotations

import numpy as np
import pytest

from dynolab.chapters.transfer.task import (
    COMMON,
    FIELDS,
    TOPICS,
    TopicConfig,
    bags,
    generate,
    vocabulary,
)


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
