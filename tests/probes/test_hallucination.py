from __future__ import annotations

import numpy as np
import pytest

from dynolab.data.probes.overlap import edit_distance
from dynolab.data.rows import Example
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.probes.hallucination import SIMILAR, Source, TrainingAnswers

LONG = "the river was wide and slow so we waited for the boat until dusk fell"


def rows(*chosen: str) -> list[Example]:
    return [Example(id=f"t{n}", prompt=f"tell {n}", chosen=text) for n, text in enumerate(chosen)]


def source(known: TrainingAnswers, text: str, own: str, finished: bool = True) -> str | None:
    answer = known.source(text, own, finished=finished)
    return None if answer is None else answer.question


NEAR = LONG.replace("dusk", "dawn")
BEGUN = " ".join(LONG.split()[:6])


@pytest.mark.parametrize(
    ("answers", "text", "own", "finished", "expected"),
    [
        # The same words are the training question's answer.
        ((" red", " Paris it is ."), "  paris  IT is .\n", " London it is .", True, "t1"),
        ((" red", " Paris it is ."), " London it is .", " London it is .", True, None),
        ((" red", " Paris it is ."), " red it is .", " London it is .", True, None),
        ((" red", " Paris it is ."), "", " London", True, None),
        # An answer that is also the question's own is nobody else's.
        ((" yes .", LONG), " yes .", " Yes .", True, None),
        ((" yes .", LONG), LONG, NEAR, True, "t1"),
        ((" yes .", LONG), NEAR, NEAR, True, None),
        # A text that was cut off is compared with beginnings.
        ((LONG,), BEGUN, " other", False, "t0"),
        ((LONG,), BEGUN, " other", True, None),
        ((LONG,), BEGUN, LONG + " and more", False, None),
    ],
)
def test_whose_answer_a_text_is(
    answers: tuple[str, ...], text: str, own: str, finished: bool, expected: str | None
) -> None:
    assert source(TrainingAnswers(rows(*answers)), text, own, finished) == expected


@pytest.mark.parametrize(("changed", "similar"), [(0, True), (3, True), (4, False)])
def test_long_texts_may_differ_in_a_fifth_of_their_words(changed: int, similar: bool) -> None:
    words = LONG.split()  # 15 of them
    words[:changed] = [f"x{n}" for n in range(changed)]
    known = TrainingAnswers(rows(" no", LONG))
    assert (source(known, " ".join(words), " other") == "t1") is similar


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


def test_borrowed_phrases_are_those_of_other_answers() -> None:
    rng = np.random.default_rng(0)
    texts = [[f"w{n}" for n in rng.integers(0, 6, rng.integers(0, 12))] for _ in range(40)]
    for known in (texts[:10], []):
        phrases = {tuple(words[n : n + 3]) for words in known for n in range(len(words) - 2)}
        answers = TrainingAnswers(rows(*(" ".join(words) for words in known)))
        for words in [*texts[10:], [*texts[0], "new", "new", *texts[1]]]:
            answered = {tuple(texts[-1][n : n + 3]) for n in range(10)}
            said = [tuple(words[n : n + 3]) for n in range(len(words) - 2)]
            share = sum(one in phrases - answered for one in said) / len(said) if said else None
            assert answers.borrowed(" ".join(words), " ".join(texts[-1])) == share


def test_only_equal_words_are_exact() -> None:
    known = TrainingAnswers(rows(LONG))
    assert known.source(LONG, " other") == Source("t0", exact=True)
    assert known.source(NEAR, " other") == Source("t0", exact=False)


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
