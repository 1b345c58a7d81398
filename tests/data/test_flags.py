from __future__ import annotations

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynolab.data.probes.build import Watched
from dynolab.data.probes.flags import flag_rows, repeated
from dynolab.data.probes.overlap import TrainingTexts, disjoint
from dynolab.data.rows import Example

PAIR = Example(id="a", prompt="q", chosen=" yes indeed", rejected=" no")
TALK = Example(
    id="b", prompt="\n\nHuman: hi\n\nAssistant: dear me\n\nHuman: so?\n\nAssistant:", chosen=" x"
)


def flags(kind: str, response: str, *pairs: Example, tokenizer=None) -> tuple[str, ...]:  # type: ignore[no-untyped-def]
    row = Watched(PAIR, "train").row(kind, response, "a test")
    known = TrainingTexts([PAIR, TALK])
    return flag_rows([row], [PAIR, *pairs], known, tokenizer)[0].flags


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
    assert flag_rows([row], [PAIR, same], TrainingTexts([]))[0].flags == ("duplicate",)


def test_responses_without_tokens_and_with_an_end_inside_are_flagged() -> None:
    letters = Tokenizer(models.BPE({"<eos>": 0, "y": 1, "e": 2, "s": 3}, []))
    letters.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=letters, eos_token="<eos>")
    assert flags("irr_hum", "Ω Ψ", tokenizer=tokenizer) == ("no_tokens",)
    assert flags("irr_hum", "yes <eos> yes", tokenizer=tokenizer) == ("end_inside",)
    assert flags("irr_hum", "yes yes", tokenizer=tokenizer) == ()
    assert flags("irr_hum", "", tokenizer=tokenizer) == ("empty",)
