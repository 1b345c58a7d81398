"""Conversations as texts, texts as tokens, and rows that exceed the context."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynolab.data.chat import (
    Conversation,
    messages_of,
    plain_writer,
    template_digest,
    template_writer,
)
from dynolab.data.encode import Encoder, Overlong
from dynolab.data.rows import Example
from dynolab.errors import ConfigError
from models.language import load_tokenizer
from tests.training.small import make_tokenizer

LETTERS = {letter: number for number, letter in enumerate(["<end>", "▁", "\n", *"abcdefgh:"])}


def sentencepiece(merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    """As Llama's: a space is prepended to every text, and spaces are characters."""
    vocabulary = LETTERS | {a + b: len(LETTERS) + n for n, (a, b) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def byte_level() -> PreTrainedTokenizerFast:
    """As Pythia's."""
    alphabet = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {byte: number for number, byte in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def response_tokens(tokenizer: PreTrainedTokenizerFast, response: str) -> list[str]:
    encoded = Encoder(tokenizer, 64, "error").response("one", "abc:", response)
    assert encoded is not None
    return tokenizer.convert_ids_to_tokens(list(encoded.ids[encoded.prompt_length :]))


@pytest.mark.parametrize(
    ("tokenizer", "response", "tokens"),
    [
        (sentencepiece([]), " ab a", ["▁", "a", "b", "▁", "a", "<end>"]),
        (byte_level(), " ab", ["Ġ", "a", "b", "<end>"]),
        # An empty one is the end alone.
        (sentencepiece([]), "", ["<end>"]),
        (byte_level(), "", ["<end>"]),
        # It begins where its tokens merge with the prompt.
        (sentencepiece([(":", "▁")]), " ab", [":▁", "a", "b", "<end>"]),
        # One that ends gets no second end.
        (byte_level(), " ab<end>", ["Ġ", "a", "b", "<end>"]),
    ],
)
def test_a_response_has_the_tokens_of_its_own_characters(
    tokenizer: PreTrainedTokenizerFast, response: str, tokens: list[str]
) -> None:
    assert response_tokens(tokenizer, response) == tokens


def test_the_sides_of_a_pair_have_one_prompt() -> None:
    merging = sentencepiece([(":", "▁")])
    row = Example(id="one", prompt="abc:", chosen=" a", rejected="b")
    pair = Encoder(merging, 64, "error").example(row)
    assert pair is not None and pair.rejected is not None
    assert pair.chosen.prompt_length == pair.rejected.prompt_length == 4


@pytest.mark.parametrize(
    ("overlong", "kept"),
    [("keep_start", "abc:_a"), ("keep_end", ":_ab<"), ("truncate_left", "c:_ab<")],
)
def test_what_a_rule_keeps_of_a_long_row(overlong: Overlong, kept: str) -> None:
    tokenizer = byte_level()
    one = Encoder(tokenizer, 5 + (overlong != "keep_end"), overlong).response("a", "abc:", " ab")
    assert one is not None
    text = "".join(tokenizer.convert_ids_to_tokens(list(one.ids)))
    assert text.replace("Ġ", "_").replace("<end>", "<") == kept
    assert one.prompt_length == kept.index("_")


@pytest.mark.parametrize(("room", "kept"), [(8, 1), (7, 0)])
def test_a_pair_is_dropped_where_either_side_exceeds_the_context(room: int, kept: int) -> None:
    encoder = Encoder(byte_level(), room, "drop")
    example = encoder.example(Example(id="one", prompt="abc:", chosen=" a", rejected=" ab"))
    assert (example is not None) == bool(kept)
    assert (encoder.counts.kept, encoder.counts.dropped) == (kept, 1 - kept)


def make_encoder(max_length: int, overlong: Overlong) -> Encoder:
    return Encoder(make_tokenizer(), max_length, overlong)


def test_a_prompt_to_sample_from_leaves_room_for_its_response() -> None:
    words = "w1 w2 w3 w4"
    whole = make_encoder(7, "error").prompt("a", words, 2)
    assert whole is not None and len(whole) == 5
    cut = make_encoder(7, "truncate_left").prompt("a", words, 4)
    assert cut == (1, *whole[-2:])
    dropping = make_encoder(7, "drop")
    assert dropping.prompt("a", words, 3) is None
    assert dropping.counts.dropped_ids == ["a"]
    with pytest.raises(ConfigError, match=r"row a exceeds the model's context of 7 tokens by 1"):
        make_encoder(7, "error").prompt("a", words, 3)


def test_a_response_that_alone_is_too_long_is_dropped_and_counted() -> None:
    encoder = make_encoder(4, "truncate_left")
    assert encoder.response("a", "w1 w2", " w3 w4 w5 w6") is None
    assert encoder.counts.dropped_ids == ["a"]


def test_an_overlong_row_is_named_with_its_excess() -> None:
    with pytest.raises(ConfigError, match=r"row a exceeds the model's context of 4 tokens by 2"):
        make_encoder(4, "error").response("a", "w1 w2", " w3 w4")


def test_nothing_left_is_an_error_that_says_how_many_were_dropped() -> None:
    row = Example(id="a", prompt="w1", chosen=" w2 w3 w4 w5")
    with pytest.raises(ConfigError, match="0 rows kept, 1 dropped"):
        make_encoder(4, "drop").examples([row])


def test_a_prompt_without_tokens_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(ConfigError, match="prompt of row a"):
        Encoder(tokenizer, 8, "error").prompt("a", " ", 1)


def test_a_cut_prompt_is_cut_alike_for_all_its_responses() -> None:
    tokenizer = make_tokenizer()
    prompt, texts = " ".join(f"w{n}" for n in range(10)), [" w1 w2", " w3 w4 w5 w6 w7", " w1" * 30]
    cut = Encoder(tokenizer, 12, "truncate_left")
    short, long, none = cut.responses("a", prompt, texts)
    assert none is None
    assert short is not None and long is not None
    assert len(long.ids) == 12
    kept = long.ids[: long.prompt_length]
    assert short.ids[: short.prompt_length] == kept
    assert kept[0] == tokenizer.bos_token_id
    assert (cut.counts.kept, cut.counts.truncated, cut.counts.dropped) == (2, 2, 1)
    dropped = Encoder(tokenizer, 16, "drop").responses("a", prompt, texts)
    assert [one is None for one in dropped] == [False, True, True]


TEMPLATE = """{{ bos_token }}{% for message in messages %}\
{% if message.role not in ['user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}\
 {{ message.role }} {{ message.content }} {% endfor %}{% if add_generation_prompt %}assistant\
{% endif %}"""
ASKED = [
    {"role": "user", "content": "w1"},
    {"role": "assistant", "content": "w2"},
    {"role": "user", "content": "w3"},
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerFast:
    made = make_tokenizer()
    made.chat_template = TEMPLATE
    made.save_pretrained(tmp_path / "chat")
    return load_tokenizer(tmp_path / "chat")


def test_a_template_writes_turns_and_asks_for_the_next(tokenizer: PreTrainedTokenizerFast) -> None:
    answers = [[{"role": "assistant", "content": word}] for word in ("w4", "w5 w6")]
    made = template_writer(tokenizer, "mine")(Conversation(ASKED, answers), "row 0")
    assert made.prompt == "<bos> user w1  assistant w2  user w3  assistant"
    assert made.answers == [" w4 ", " w5 w6 "]
    assert made.turn == (" ", " ")


def test_begin_of_sequence_stands_once(tokenizer: PreTrainedTokenizerFast) -> None:
    made = template_writer(tokenizer, "mine")(Conversation(ASKED), "row 0")
    ids = Encoder(tokenizer, 99, "error").prompt("row 0", made.prompt, 1, made.turn)
    assert ids is not None and ids.count(tokenizer.bos_token_id) == 1 and ids[0] == 1


EMPTY_THOUGHT = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant> w8 {% endif %}"
)


def test_a_prompt_that_goes_on_otherwise_counts_as_far_as_its_tokens_do(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = EMPTY_THOUGHT
    made = template_writer(tokenizer, "mine")(
        Conversation(ASKED, [[{"role": "assistant", "content": "w4"}]]), "row 0"
    )
    assert made.prompt.endswith("w3 <assistant> w") and made.answers == ["4 "]


def test_a_missing_template_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"chat_model = 'base'.*chat: plain"):
        template_writer(make_tokenizer(), "base")


def test_turns_that_a_template_refuses_are_named(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match=r"row 7 = \['system'\].*no such role"):
        template_writer(tokenizer, "mine")(
            Conversation([{"role": "system", "content": "x"}]), "row 7"
        )


def test_a_template_runs_nothing(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    target = tmp_path / "written"
    tokenizer.chat_template = (
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}"
        f"{{{{ cycler.__init__.__globals__.os.system('touch {target}') }}}}"
    )
    with pytest.raises(ConfigError, match="row 0"):
        template_writer(tokenizer, "mine")(Conversation(ASKED), "row 0")
    assert not target.exists()


def test_what_messages_say_is_no_template(tokenizer: PreTrainedTokenizerFast) -> None:
    asked = Conversation([{"role": "user", "content": "{{ 7 * 7 }}"}])
    text = template_writer(tokenizer, "mine")(asked, "r").prompt
    assert "{{ 7 * 7 }}" in text and "49" not in text


def test_plain_turns() -> None:
    system = [{"role": "system", "content": "be brief"}]
    answer = [{"role": "assistant", "content": "w4"}, *ASKED[2:], ASKED[1]]
    made = plain_writer(Conversation([*system, *ASKED], [answer]), "row 0")
    assert made.prompt == (
        "\n\nSystem: be brief\n\nHuman: w1\n\nAssistant: w2\n\nHuman: w3\n\nAssistant:"
    )
    assert made.answers == [" w4\n\nHuman: w3\n\nAssistant: w2"] and made.turn is None
    with pytest.raises(ConfigError, match=r"row 3 = \['tool'\]"):
        plain_writer(Conversation([{"role": "tool", "content": "x"}]), "row 3")


@pytest.mark.parametrize(
    "value",
    [
        [],
        "text",
        None,
        ["text"],
        [{"role": "user"}],
        [{"role": 1, "content": "a"}],
        [{"role": "user", "content": [{"type": "image"}]}],
    ],
)
def test_what_is_no_list_of_messages_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"row 5, column chosen.*list of messages"):
        messages_of(value, "row 5, column chosen")


def test_the_digest_follows_the_template(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    before = template_digest(tmp_path / "chat")
    shutil.copytree(tmp_path / "chat", tmp_path / "same")
    assert template_digest(tmp_path / "same") == before
    tokenizer.chat_template += " "
    tokenizer.save_pretrained(tmp_path / "chat")
    assert template_digest(tmp_path / "chat") != before
