"""Texts with topics: generated ones, files, bags of words, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dynolab.chapters.transfer.topic_words import COMMON, FIELDS, TOPICS
from dynolab.chapters.transfer.topics import (
    TopicConfig,
    bags,
    load_topics,
    resolve_topics,
    vocabulary,
)
from dynolab.errors import ConfigError


def written(file: Path, rows: list[object]) -> TopicConfig:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TopicConfig(source="file", path=str(file))


def test_generated_texts_take_turns_and_speak_of_their_topic() -> None:
    found = load_topics(TopicConfig(texts=1200))
    assert np.bincount(found.labels).tolist() == [100] * 12
    assert found.names == tuple(TOPICS)
    own = [
        np.mean([word in TOPICS[found.names[label]][1] for word in words])
        for words, label in zip(found.words, found.labels, strict=True)
    ]
    assert np.mean(own) == pytest.approx(0.15, abs=0.01)
    again = load_topics(TopicConfig(texts=1200))
    assert again.words == found.words
    assert load_topics(TopicConfig(texts=1200, seed=1)).words != found.words


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


def test_rows_of_a_file_are_texts_in_lower_case(tmp_path: Path) -> None:
    rows = [{"text": f"Word, {n}!", "label": n % 2} for n in range(6)]
    config = resolve_topics(written(tmp_path / "texts.jsonl", rows))
    assert config.revision is not None
    found = load_topics(config)
    assert found.words[1] == ["word", "1"]
    assert found.labels.tolist() == [0, 1, 0, 1, 0, 1]
    (tmp_path / "texts.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"texts\.revision"):
        resolve_topics(config)


REFUSED = [
    ([{"text": "a", "label": "x"}], "texts row 0, column label = 'x': must be a whole number"),
    ([{"text": "a", "label": True}], "must be a whole number"),
    ([{"text": 3, "label": 0}], "texts row 0, column text = 3: must be a text"),
    ([{"words": "a"}], "column text = None"),
    ([{"text": "a", "label": -1}], "texts.label = -1"),
    ([{"text": "a", "label": 0}, {"text": "b", "label": 10**12}], "texts.label = 1: no text"),
    ([], "has no texts"),
]


@pytest.mark.parametrize(("rows", "message"), REFUSED)
def test_rows_that_are_no_texts_with_topics_are_refused(
    tmp_path: Path, rows: list[object], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_topics(written(tmp_path / "texts.jsonl", rows))
    assert message in str(refused.value)


def test_a_source_needs_its_own_name() -> None:
    with pytest.raises(ConfigError, match=r"texts\.path = None: set it for source: file"):
        TopicConfig(source="file")
    with pytest.raises(ConfigError, match=r"texts\.hub_name = 'a/b'"):
        TopicConfig(hub_name="a/b")
    with pytest.raises(ConfigError, match="no such file"):
        resolve_topics(TopicConfig(source="file", path="/nowhere.jsonl"))
