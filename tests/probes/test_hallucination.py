from __future__ import annotations

import numpy as np
import pytest

from dynolab.data.probes.edit_distance import edit_distance
from dynolab.data.rows import Example
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.probes.hallucination import SIMILAR, Source, TrainingAnswers

LONG = "the river was wide and slow so we waited for the boat until dusk fell"


def rows(*chosen: str) -> list[Example]:
    return [Example(id=f"t{n}", prompt=f"tell {n}", chosen=text) for n, text in enumerate(chosen)]


def source(known: TrainingAnswers, text: str, own: str, finished: bool = True) -> str | None:
    found = known.source(text, own, finished=finished)
    return None if found is None else found.question


def test_the_same_words_are_the_training_questions_answer() -> None:
    known = TrainingAnswers(rows(" red", " Paris it is ."))
    assert source(known, "  paris  IT is .\n", " London it is .") == "t1"
    assert source(known, " London it is .", " London it is .") is None
    assert source(known, " red it is .", " London it is .") is None
    assert source(known, "", " London") is None


def test_an_answer_that_is_also_the_questions_own_is_nobody_elses() -> None:
    known = TrainingAnswers(rows(" yes .", LONG))
    assert source(known, " yes .", " Yes .") is None
    assert source(known, LONG, LONG.replace("dusk", "dawn")) == "t1"
    assert source(known, LONG.replace("dusk", "dawn"), LONG.replace("dusk", "dawn")) is None


@pytest.mark.parametrize(("changed", "found"), [(0, True), (3, True), (4, False)])
def test_long_texts_may_differ_in_a_fifth_of_their_words(changed: int, found: bool) -> None:
    words = LONG.split()  # 15 of them
    words[:changed] = [f"x{n}" for n in range(changed)]
    known = TrainingAnswers(rows(" no", LONG))
    assert (source(known, " ".join(words), " other") == "t1") is found


def test_a_text_that_was_cut_off_is_compared_with_beginnings() -> None:
    known = TrainingAnswers(rows(LONG))
    begun = " ".join(LONG.split()[:6])
    assert source(known, begun, " other", finished=False) == "t0"
    assert source(known, begun, " other", finished=True) is None
    assert source(known, begun, LONG + " and more", finished=False) is None


def test_the_nearest_of_many_is_found_as_by_comparing_with_all() -> None:
    rng = np.random.default_rng(0)
    texts = [[f"w{n}" for n in rng.integers(0, 4, rng.integers(4, 12))] for _ in range(60)]
    known = TrainingAnswers(rows(*(" ".join(words) for words in texts[:40])))
    own = texts[-1]
    hits = 0
    for words in texts[40:-1] + [[*words[:-1], "new"] for words in texts[:40]]:
        for finished in (True, False):
            far = [
                _words_apart(words, other if finished else other[: len(words)])
                for other in [own, *texts[:40]]
            ]
            near = int(np.argmin(far[1:]))
            expected = f"t{near}" if far[near + 1] <= SIMILAR and far[near + 1] < far[0] else None
            assert source(known, " ".join(words), " ".join(own), finished=finished) == expected
            hits += expected is not None
    assert hits > 20


def _words_apart(one: list[str], other: list[str]) -> float:
    number = {word: n for n, word in enumerate(dict.fromkeys([*one, *other]))}
    return edit_distance([number[w] for w in one], [number[w] for w in other])


def test_only_equal_words_are_exact() -> None:
    known = TrainingAnswers(rows(LONG))
    near = LONG.replace("dusk", "dawn")
    assert known.source(LONG, " other") == Source("t0", exact=True)
    assert known.source(near, " other") == Source("t0", exact=False)


def test_in_the_built_in_world_the_stated_fact_decides() -> None:
    world = build_world(WorldConfig(entities=20, train_pairs=24, heldout_pairs=6))
    known = TrainingAnswers(world.pairs)
    for held in world.heldout:
        assert held.rejected is not None
        assert known.source(held.chosen, held.chosen) is None
        assert known.source(held.rejected, held.chosen) is None
        for trained in world.pairs:
            exact, made_up = Source(trained.id, exact=True), Source(trained.id, exact=False)
            assert trained.rejected is not None
            assert known.source(trained.chosen, held.chosen) == exact
            assert known.source(trained.rejected, held.chosen) == made_up
            words = trained.chosen.split()
            restyled = " ".join(["well", "surely", *words[2:6], "today", "pal", "peace", "."])
            assert known.source(restyled, held.chosen) == exact
    two = " ".join(row.chosen.strip() for row in world.pairs[:2])
    assert source(known, two, world.heldout[0].chosen) is None
    assert source(known, " welcome welcome .", world.heldout[0].chosen) is None
