"""Single answers are followed from arm to arm, where every seed watches the same ones."""

from __future__ import annotations

from dynolab.comparisons.pair_arms import EACH, Key, chosen_changes, followed_answers
from dynolab.data.rows import ProbeRow
from tests.report.synthetic import DPO, probes


def watched(*pairs: str, prompt: str = "why?") -> list[ProbeRow]:
    return [
        ProbeRow(
            pair_id=pair, split="train", kind=kind, prompt=prompt, response=" so", made_by="data"
        )
        for pair in pairs
        for kind in ("chosen", "rejected")
    ]


def of(**changes: float) -> dict[Key, float]:
    return {("train", pair): nats for pair, nats in changes.items()}


def test_changes_are_those_of_the_chosen_answers_from_start_to_end() -> None:
    scores = probes(DPO, 100, pairs=6)
    changes = chosen_changes(scores)
    assert len(changes) == 6 and {split for split, _ in changes} == {"train", "heldout"}
    start, *_, end = (row.logp for row in scores if (row.pair_id, row.kind) == ("q001", "chosen"))
    assert changes["train", "q001"] == end - start


def test_the_answers_that_fell_most_with_the_baselines_first_seed_are_followed() -> None:
    base = [of(a=-1.0, b=-3.0, c=0.5), of(a=-9.0, b=2.0, c=-8.0)]
    arms = {"dpo": base, "soft": [of(a=0.1, b=0.2, c=0.3), of(a=0.4, b=0.5)]}
    followed = followed_answers(arms, [watched("a", "b", "c")] * 2, "dpo")
    assert [answer.pair_id for answer in followed] == ["b", "a"]
    assert followed[0].changes == {"dpo": (-3.0, 2.0), "soft": (0.2, 0.5)}
    many = of(**{f"p{number}": -number - 1.0 for number in range(EACH + 3)})
    rows = watched(*(pair for _, pair in many))
    assert len(followed_answers({"dpo": [many]}, [rows], "dpo")) == EACH


def test_named_answers_are_followed_wherever_they_went() -> None:
    arms = {"dpo": [of(a=-1.0, b=3.0)]}
    followed = followed_answers(arms, [watched("a", "b")], "dpo", ["b", "x"])
    assert [answer.pair_id for answer in followed] == ["b"]


def test_another_answer_under_the_same_id_does_not_count() -> None:
    arms = {"dpo": [of(a=-1.0), of(a=-2.0)]}
    rows = [watched("a"), watched("a", prompt="how?")]
    (answer,) = followed_answers(arms, rows, "dpo")
    assert answer.changes == {"dpo": (-1.0, None)}


def test_a_diverged_run_leaves_the_choice_to_the_next_seed() -> None:
    arms = {"dpo": [of(), of(a=-2.0)], "soft": [of(a=-1.0), of()]}
    (answer,) = followed_answers(arms, [watched("a")] * 2, "dpo")
    assert answer.changes == {"dpo": (None, -2.0), "soft": (-1.0, None)}
    assert followed_answers({"dpo": [of()]}, [watched("a")], "dpo") == ()
