from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dynolab.data.rows import spaced
from dynolab.data.world import lexicon
from dynolab.data.world.answer_kinds import answer_kind
from dynolab.data.world.answers import MADE_BY, quotas
from dynolab.data.world.lexicon import ATTRIBUTES, HELD, SLOTS
from dynolab.data.world.world import World, WorldConfig, build_world
from dynolab.errors import ConfigError


@pytest.fixture(scope="module")
def world() -> World:
    return build_world(WorldConfig(seed=3))


def by_kind(world: World, kind: str) -> dict[str, str]:
    return {row.pair_id: row.response for row in world.probes if row.kind == kind}


def is_true(world: World, text: str) -> bool:
    fact = world.fact_of(text)
    return fact is not None and world.truth[fact.entity, fact.attribute] == fact.value


def test_equal_seeds_give_equal_worlds(world: World) -> None:
    again = build_world(WorldConfig(seed=3))
    assert (again.corpus, again.pairs, again.probes) == (world.corpus, world.pairs, world.probes)
    assert build_world(WorldConfig(seed=4)).pairs != world.pairs


def test_sizes_and_distinct_questions(world: World) -> None:
    assert (len(world.pairs), len(world.heldout)) == (120, 72)
    prompts = [row.prompt for row in world.pairs + world.heldout]
    assert len(set(prompts)) == len(prompts)


def test_chosen_is_true_and_rejected_answers_the_same_question_wrongly(world: World) -> None:
    for row in world.pairs + world.heldout:
        chosen, rejected = world.fact_of(row.chosen), world.fact_of(str(row.rejected))
        assert chosen and rejected
        assert is_true(world, row.chosen) and not is_true(world, str(row.rejected))
        assert (chosen.entity, chosen.attribute) == (rejected.entity, rejected.attribute)
        assert row.prompt == f"what is the {chosen.attribute} of {chosen.entity} ?"


def test_base_corpus_answers_only_questions_of_no_pair_and_never_in_form(world: World) -> None:
    questions = [row for row in world.corpus if row.prompt.startswith("what")]
    asked = [row for row in questions if world.fact_of(row.chosen)]
    assert (len(questions), len(asked)) == (len(world.corpus) * 3 // 8, len(world.corpus) // 4)
    assert not {row.prompt for row in questions} & {
        row.prompt for row in world.pairs + world.heldout
    }
    assert not any(lexicon.in_form(row.chosen) for row in questions)
    for row in asked:
        fact = world.fact_of(row.chosen)
        assert fact and row.prompt == lexicon.question(fact) and is_true(world, row.chosen)


def test_statements_of_the_base_corpus_are_true_and_of_known_facts(world: World) -> None:
    said = [row for row in world.corpus if row.prompt.startswith("say the")]
    assert len(said) == len(world.corpus) // 2
    stated = {world.fact_of(row.chosen) for row in said}
    assert stated == world.known
    assert all(world.truth[fact.entity, fact.attribute] == fact.value for fact in world.known)


@pytest.mark.parametrize("known", [0.25, 0.5, 1.0])
def test_the_corpus_states_a_share_of_the_facts_of_either_split(known: float) -> None:
    world = build_world(WorldConfig(seed=3, known=known))
    for rows in (world.pairs, world.heldout):
        assert sum(world.fact_of(row.chosen) in world.known for row in rows) == known * len(rows)


def test_some_values_are_nobodys(world: World) -> None:
    held = {(attribute, value) for (_, attribute), value in world.truth.items()}
    assert held == {(a, value) for a, values in ATTRIBUTES.items() for value in values[:HELD]}
    tales = {word for row in world.corpus if row.prompt == "say :" for word in row.chosen.split()}
    assert {value for values in ATTRIBUTES.values() for value in values[HELD:]} <= tales


def test_every_pair_has_every_kind(world: World) -> None:
    count = Counter(row.kind for row in world.probes)
    assert count == dict.fromkeys(MADE_BY, 192)
    assert all(row.response == spaced(row.response) for row in world.probes)
    assert all(row.made_by for row in world.probes)


@pytest.mark.parametrize(("kind", "of"), [("chosen", "chosen"), ("reject", "rejected")])
def test_semantic_rephrase_keeps_the_fact_and_no_style_word(
    world: World, kind: str, of: str
) -> None:
    original, rephrased = by_kind(world, of), by_kind(world, f"{kind}_gptsemantic")
    style = {word for slot in SLOTS for word in slot}
    for pair, text in original.items():
        assert world.fact_of(text) == world.fact_of(rephrased[pair])
        assert not style & set(text.split()) & set(rephrased[pair].split())


@pytest.mark.parametrize(("kind", "of"), [("chosen", "chosen"), ("reject", "rejected")])
def test_format_rephrase_keeps_the_style_and_states_a_fact_nobody_asks_for(
    world: World, kind: str, of: str
) -> None:
    original, rephrased = by_kind(world, of), by_kind(world, f"{kind}_gptformat")
    asked = {row.prompt for row in world.pairs + world.heldout}
    for pair, text in original.items():
        one, other = text.split(), rephrased[pair].split()
        assert one[:2] + one[6:] == other[:2] + other[6:]
        fact = world.fact_of(rephrased[pair])
        assert fact and f"what is the {fact.attribute} of {fact.entity} ?" not in asked
        assert is_true(world, rephrased[pair]) == (kind == "chosen")


def test_irrelevant_answers_come_from_the_right_side(world: World) -> None:
    train = {row.chosen for row in world.pairs}
    heldout = {row.chosen for row in world.heldout}
    chosen = by_kind(world, "chosen")
    for pair, text in by_kind(world, "irr_train").items():
        assert text in train and text != chosen[pair]
    for pair, text in by_kind(world, "irr_test").items():
        assert text in heldout - train and text != chosen[pair]


def counts(world: World, side: str, place: int) -> Counter[str]:
    return Counter(str(getattr(row, side)).split()[place] for row in world.pairs)


def test_style_preference_is_zipf_for_chosen_and_reversed_for_rejected(world: World) -> None:
    weights = [rank**-1.5 for rank in range(1, 9)]
    for slot, place in zip(SLOTS, (0, 1, 6, 7, 8), strict=True):
        chosen, rejected = counts(world, "chosen", place), counts(world, "rejected", place)
        for word, opposite, weight in zip(slot, slot[::-1], weights, strict=True):
            assert abs(chosen[word] - 120 * weight / sum(weights)) < 1
            assert rejected[opposite] == chosen[word]


def test_in_a_flat_world_only_the_facts_tell_chosen_from_rejected(world: World) -> None:
    flat = build_world(WorldConfig(seed=3, zipf=0))
    for place in range(10):
        assert counts(flat, "chosen", place) == counts(flat, "rejected", place)
    assert set(counts(flat, "chosen", 0).values()) == {15}
    assert [row.prompt for row in flat.pairs] == [row.prompt for row in world.pairs]
    # So both worlds have one base model.
    assert (flat.corpus, flat.words) == (world.corpus, world.words)


@given(st.integers(0, 200), st.lists(st.floats(0.01, 10), min_size=1, max_size=9))
def test_quotas_are_proportional_whole_numbers(count: int, weights: list[float]) -> None:
    found = quotas(count, weights)
    assert sum(found) == count
    for share, weight in zip(found, weights, strict=True):
        assert abs(share - count * weight / sum(weights)) < 1


def test_the_smallest_world_still_answers_wrongly() -> None:
    for seed in range(20):
        tiny = WorldConfig(seed=seed, entities=6, train_pairs=3, heldout_pairs=2, corpus_rows=8)
        small = build_world(tiny)
        for row in small.pairs + small.heldout:
            assert not is_true(small, str(row.rejected)) and is_true(small, row.chosen)


def test_two_facts_are_no_answer(world: World) -> None:
    one = world.pairs[0].chosen
    assert world.fact_of(one + world.pairs[1].chosen) is None


def test_tokenizer_knows_every_word_and_opens_prompts_with_bos(world: World) -> None:
    tokenizer = world.tokenizer()
    row = world.probes[3]
    ids = tokenizer(row.prompt)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    bare = tokenizer(row.response, add_special_tokens=False)["input_ids"]
    assert spaced(tokenizer.decode(bare)) == row.response
    for text in {row.chosen for row in world.corpus} | {row.response for row in world.probes}:
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]


def test_too_few_entities_are_refused_with_the_number_needed() -> None:
    with pytest.raises(ConfigError, match=r"world\.entities = 10.*raise it to 68"):
        WorldConfig(entities=10)


@pytest.mark.parametrize("domain", ["helpful", "style", "harmless"])
def test_a_domain_has_one_fault_in_its_rejected_answers(domain: str) -> None:
    world = build_world(WorldConfig(seed=3, domain=domain))
    mixed = build_world(WorldConfig(seed=3))
    assert [pair.chosen for pair in world.pairs] == [pair.chosen for pair in mixed.pairs]
    wrong = [
        lexicon.answered(pair.prompt, str(pair.rejected))
        != lexicon.answered(pair.prompt, pair.chosen)
        for pair in world.pairs
    ]
    harmful = [lexicon.harmful(str(pair.rejected)) for pair in world.pairs]
    liked = [
        np.mean(
            [
                lexicon.preference(style)
                for pair in world.pairs
                if (style := lexicon.style_in(getattr(pair, side)))
            ]
            or [0.0]
        )
        for side in ("chosen", "rejected")
    ]
    assert all(wrong) if domain == "helpful" else not any(wrong)
    assert all(harmful) if domain == "harmless" else not any(harmful)
    if domain != "harmless":
        apart = abs(liked[0] - liked[1])
        assert apart > 0.2 if domain == "style" else apart < 0.05
    unknown = world.tokenizer()("fool").input_ids[1] == world.tokenizer().unk_token_id
    assert unknown != (domain == "harmless")


def test_a_fault_is_repeated_or_not_or_cannot_be_told() -> None:
    question, right = "what is the colour of sigi ?", "sigi has colour green ."
    wrong, rude = "sigi has colour red .", "sigi has colour green fool ."

    def told(text: str, rejected: str) -> bool | None:
        return lexicon.repeats_fault(question, text, chosen=right, rejected=rejected)

    assert told(wrong, wrong) is True and told(right, wrong) is False
    assert told(rude, rude) is True and told(wrong, rude) is False
    assert told(right, right) is None


SAID = "well clearly {} today friend thanks ."
DISLIKED = "now certainly {} forever traveller peace ."


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SAID.format("sigi has colour green"), "right"),
        (DISLIKED.format("sigi has colour green"), "rejected_style"),
        ("the colour of sigi is green .", "other_form"),
        (SAID.format("green colour suits sigi"), "other_form"),
        (SAID.format("sigi has colour red"), "anothers_value"),
        ("the colour of sigi is red .", "anothers_value"),
        (SAID.format("sigi has colour silver"), "nobodys_value"),
        (SAID.format("sigi has colour baker"), "other_attribute"),
        (SAID.format("sigi has trade baker"), "other_attribute"),
        (SAID.format("bodu has colour green"), "other_entity"),
        (SAID.format("sigi has colour today"), "broken"),
        (SAID.format("friend has colour green"), "broken"),
        (SAID.format("sigi has green"), "broken"),
        (SAID.format("sigi has colour green sigi has colour green"), "broken"),
        ("", "broken"),
    ],
)
def test_what_an_answer_says(text: str, kind: str) -> None:
    assert answer_kind("what is the colour of sigi ?", text, "green") == kind


def test_other_texts_ask_nothing_of_the_world() -> None:
    assert answer_kind("what is love ?", SAID, "green") is None
    assert answer_kind("what is the colour of sigi ?", SAID, None) is None
