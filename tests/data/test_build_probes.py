"""Probe rows that need no model, and their flags."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynolab.data.probes.build import Watched, build_probes, other, rows_from_data, shuffled
from dynolab.data.probes.kinds import DATA_KINDS
from dynolab.data.probes.overlap import TrainingTexts, bare, disjoint, flag_rows, repeated
from dynolab.data.rows import Example
from dynolab.errors import ConfigError


def row(name: str, **other: str) -> Example:
    texts = {"prompt": f"q {name}", "chosen": f" a {name}", "rejected": f" b {name}"} | other
    return Example(id=name, **texts)


TRAIN = [row(f"t{n}") for n in range(6)]
HELDOUT = [row(f"h{n}") for n in range(4)]


def test_every_kind_for_the_wanted_pairs_of_both_parts() -> None:
    rows = build_probes(TRAIN, HELDOUT, pairs=3, seed=0)
    assert len(rows) == 2 * 3 * 6
    assert rows == build_probes(TRAIN, HELDOUT, pairs=3, seed=0)
    assert rows != build_probes(TRAIN, HELDOUT, pairs=3, seed=1)
    chosen = {row.pair_id: row.response for row in rows if row.kind == "chosen"}
    for one in rows:
        if one.kind == "irr_train":
            assert one.response in {row.chosen for row in TRAIN} - {chosen[one.pair_id]}
        if one.kind == "irr_test":
            assert one.response in {row.chosen for row in HELDOUT} - {chosen[one.pair_id]}


def test_irr_test_avoids_training_rows_that_are_not_probed() -> None:
    leak = [row("l0", chosen=" a t5"), row("l1", prompt="q t4"), row("l2", rejected="a  t3 ")]
    assert disjoint([*leak, *HELDOUT], TRAIN) == HELDOUT
    rows = build_probes(TRAIN, [*leak, *HELDOUT], pairs=2, seed=0)
    assert not {row.pair_id for row in rows} & {"l0", "l1", "l2"}


def test_too_few_disjoint_rows_leave_kinds_out() -> None:
    fresh = [*HELDOUT[:1], *TRAIN]
    kinds = {one.kind for one in build_probes(TRAIN, fresh, pairs=2, seed=0)}
    assert kinds == {*DATA_KINDS} - {"irr_test", "random_nonhum"}
    with pytest.raises(ConfigError, match="held-out rows disjoint from training = 1"):
        rows_from_data([], TRAIN, HELDOUT[:1], kinds=["irr_test"], seed=0)


def test_rows_without_a_rejected_answer_have_no_rejected_probe() -> None:
    bare = [one.model_copy(update={"rejected": None}) for one in TRAIN]
    assert "rejected" not in {
        build_probe.kind
        for build_probe in build_probes(bare, bare[:0] + HELDOUT, pairs=2, seed=0)
        if build_probe.split == "train"
    }


def test_rows_that_are_all_alike_have_no_other() -> None:
    assert other([TRAIN[0], TRAIN[0]], TRAIN[0], random.Random(0)) is None


@given(st.lists(st.sampled_from(["one", "two", "three"]), min_size=1, max_size=8), st.integers())
def test_shuffling_keeps_words_and_changes_the_order(words: list[str], seed: int) -> None:
    text = " ".join(words)
    mixed = shuffled(text, random.Random(seed)).split()
    assert sorted(mixed) == sorted(words)
    assert mixed != words or len(set(words)) == 1


PAIR = Example(id="a", prompt="q", chosen=" yes indeed", rejected=" no")
TALK = Example(
    id="b", prompt="\n\nHuman: hi\n\nAssistant: dear me\n\nHuman: so?\n\nAssistant:", chosen=" x"
)


def flags(kind: str, response: str, *pairs: Example, tokenizer=None) -> tuple[str, ...]:  # type: ignore[no-untyped-def]
    row = Watched(PAIR, "train").row(kind, response, "a test")
    return flag_rows([row], [PAIR, *pairs], [PAIR, TALK], tokenizer)[0].flags


def test_empty_responses_are_kept_and_flagged() -> None:
    assert flags("chosen_initial", " \n ") == ("empty",)
    assert Watched(PAIR, "train").made("chosen_initial", " \n ", "a test").response == ""


def test_a_rephrase_that_is_its_original_is_flagged() -> None:
    assert flags("chosen_gptsemantic", "yes  indeed") == ("identical",)
    assert flags("reject_gptsemantic", "no") == ("identical",)
    assert flags("reject_gptsemantic", "yes indeed") == ()
    assert flags("irr_train", "yes indeed") == ("identical",)
    assert flags("chosen", "yes indeed") == flags("rejected", "no") == ()


def test_what_training_reads_is_flagged_where_it_must_not() -> None:
    assert flags("irr_test", "no") == flags("irr_hum", "no") == ("in_training",)
    assert flags("irr_test", "dear\nme") == ("in_training",)  # a turn inside a prompt
    assert flags("irr_test", "dear") == flags("irr_train", "x") == ()


def test_a_heldout_answer_that_is_a_turn_of_a_training_prompt_is_not_disjoint() -> None:
    turn = Example(id="c", prompt="other", chosen=" dear me")
    fresh = Example(id="d", prompt="other", chosen=" fine")
    assert disjoint([turn, fresh], [TALK]) == [fresh]


def test_pairs_that_repeat_another_are_kept_and_flagged() -> None:
    same = PAIR.model_copy(update={"id": "c", "prompt": " q "})
    assert repeated([PAIR, same]) == {"c"} and repeated([same, PAIR]) == {"a"}
    assert repeated([PAIR, PAIR.model_copy(update={"rejected": None})]) == set()
    row = Watched(same, "train").row("chosen", same.chosen, "a test")
    assert flag_rows([row], [PAIR, same], [])[0].flags == ("duplicate",)


TEXTS = st.lists(st.sampled_from(["a", "b", " ", "\n\nHuman:"]), max_size=9).map("".join)
PAIRS = st.lists(st.builds(row, st.just("x"), prompt=TEXTS, chosen=TEXTS, rejected=TEXTS))


@given(PAIRS, PAIRS)
def test_overlap_is_that_of_all_words(train: list[Example], heldout: list[Example]) -> None:
    texts = [text for one in heldout for text in (one.prompt, one.chosen, one.rejected or "")]
    known, prompts = TrainingTexts(train, texts), {bare(one.prompt) for one in train}
    turns = [text for one in train for text in one.prompt.split("\n\nHuman:")[1:]]
    answers = {bare(text) for one in train for text in (one.chosen, one.rejected or "")}
    answers |= set(map(bare, turns))
    for text in texts:
        assert known.prompt(text) == (bare(text) in prompts)
        assert known.answer(text) == (bare(text) in answers - {""})
    pairs = [one.model_copy(update={"id": str(n)}) for n, one in enumerate([*train, *heldout])]
    words = [tuple(map(bare, (one.prompt, one.chosen, one.rejected or ""))) for one in pairs]
    assert repeated(pairs) == {str(n) for n, texts in enumerate(words) if texts in words[:n]}


def test_responses_without_tokens_and_with_an_end_inside_are_flagged() -> None:
    letters = Tokenizer(models.BPE({"<eos>": 0, "y": 1, "e": 2, "s": 3}, []))
    letters.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<eos>")
    assert flags("irr_hum", "Ω Ψ", tokenizer=tokenizer) == ("no_tokens",)
    assert flags("irr_hum", "yes <eos> yes", tokenizer=tokenizer) == ("end_inside",)
    assert flags("irr_hum", "yes yes", tokenizer=tokenizer) == ()
    assert flags("irr_hum", "", tokenizer=tokenizer) == ("empty",)
