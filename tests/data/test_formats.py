"""Chat, prompts, labelled answers, GSM8K and Parquet files, as training rows and as prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, PromptRow, write_rows
from dynolab.data.sources.load import DataConfig, load_data, load_prompts, resolve_data
from dynolab.data.world.world import WorldConfig, build_world
from dynolab.errors import ConfigError
from dynolab.objectives import DPOConfig, KTOConfig, SFTConfig
from dynolab.training.examples import Examples
from tasks.data import chat_tokenizer
from tests.data.rows_files import file_config, turn, write
from tests.training.small import make_tokenizer


def ultrafeedback(number: int) -> dict[str, Any]:
    """A row as HuggingFaceH4/ultrafeedback_binarized has it."""
    question = turn("user", f"q {number}")
    sides = {
        "chosen": [question, turn("assistant", f"good {number}")],
        "rejected": [question, turn("assistant", f"bad {number}")],
    }
    return {
        "prompt": f"q {number}",
        "prompt_id": f"{number:064x}",
        **sides,
        "messages": sides["chosen"],
        "score_chosen": 8.0,
        "score_rejected": 3.5,
    }


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_ultrafeedback_rows_become_pairs(tmp_path: Path, kind: str) -> None:
    rows = [ultrafeedback(number) for number in range(5)]
    data = load_data(file_config(write(tmp_path, rows, kind), format="chat", chat="plain"))
    assert data.pairs[3] == Example(
        id="row-000003", prompt="\n\nHuman: q 3\n\nAssistant:", chosen=" good 3", rejected=" bad 3"
    )
    assert len(data.pairs) == 5


def test_all_forms_of_chat_rows(tmp_path: Path) -> None:
    question, yes, no = turn("user", "q"), turn("assistant", "yes"), turn("assistant", "no")
    rows = [
        {"id": "apart", "prompt": [question], "chosen": [yes], "rejected": [no]},
        {"id": "unlike", "chosen": [question, yes], "rejected": [turn("user", "r"), no]},
        {"id": "equal", "chosen": [question, yes], "rejected": [question, yes]},
    ]
    data = load_data(file_config(write(tmp_path, rows), format="chat", chat="plain"))
    prompt = "\n\nHuman: q\n\nAssistant:"
    assert data.pairs == [
        Example(id="apart", prompt=prompt, chosen=" yes", rejected=" no"),
        Example(id="equal", prompt=prompt, chosen=" yes", rejected=" yes"),
    ]
    assert data.counts["data/rows_without_common_prompt"] == 1
    assert data.counts["data/equal_answers"] == 1
    rows = [{"messages": [question, yes, turn("user", "r"), no]}] * 2
    alone, _ = load_data(file_config(write(tmp_path, rows), format="chat", chat="plain")).pairs
    assert (alone.prompt, alone.chosen) == (f"{prompt} yes\n\nHuman: r\n\nAssistant:", " no")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "x"}, r"row 0 .line 1. = \['text'\].*columns prompt and chosen"),
        ({"chosen": "text"}, "needs a prompt"),
        ({"chosen": [turn("user", "q")]}, r"\['user'\]"),
        ({"chosen": [turn("assistant", "a")]}, r"\['assistant'\]"),
        ({"messages": [turn("user", "q"), turn("user", "r")]}, "answer of the assistant last"),
        ({"chosen": [turn("tool", "q"), turn("assistant", "a")]}, "roles must be among"),
        ({"prompt": [], "chosen": [turn("assistant", "a")]}, "column prompt.*list of messages"),
        ({"prompt": 3, "chosen": "a"}, "column prompt = 3"),
    ],
)
def test_broken_chat_rows_are_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_data(file_config(write(tmp_path, [row]), format="chat", chat="plain"))


def test_the_models_template_writes_chat_rows(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    tokenizer.save_pretrained(tmp_path / "model")
    asked = file_config(
        write(tmp_path, [ultrafeedback(0), ultrafeedback(1)]),
        format="chat",
        chat_model=str(tmp_path / "model"),
    )
    resolved = resolve_data(asked)
    assert resolved.chat_revision and resolve_data(resolved) == resolved
    data = load_data(resolved, chat_tokenizer(resolved))
    assert data.pairs[1].prompt == "<user> q 1 "
    assert data.pairs[1].chosen == "<assistant> good 1 "
    tokenizer.chat_template = "changed"
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"data\.chat_revision"):
        resolve_data(resolved)
    with pytest.raises(ConfigError, match="pass its tokenizer"):
        load_data(resolved)


def test_a_model_without_template_needs_the_plain_form_asked_for(tmp_path: Path) -> None:
    make_tokenizer().save_pretrained(tmp_path / "model")
    path = write(tmp_path, [ultrafeedback(0)])
    asked = file_config(path, format="chat", chat_model=str(tmp_path / "model"))
    with pytest.raises(ConfigError, match="no chat template"):
        load_data(asked, chat_tokenizer(asked))
    with pytest.raises(ConfigError, match=r"data\.chat_model = None.*chat: plain"):
        file_config(path, format="chat")
    with pytest.raises(ConfigError, match="plain uses no template"):
        file_config(path, format="chat", chat="plain", chat_model="m")


def test_prompts_with_and_without_answers(tmp_path: Path) -> None:
    rows = [
        {"prompt": "p 0", "answer": "a"},
        {"prompt": "p 1", "answer": 42},
        {"prompt": "p 2", "answer": None},
        {"id": "mine", "prompt": [turn("user", "p 3")]},
    ]
    asked = file_config(write(tmp_path, rows), format="prompts", chat="plain")
    loaded = load_prompts(asked)
    assert loaded.train == [
        PromptRow(id="row-000000", prompt="p 0", answer="a"),
        PromptRow(id="row-000001", prompt="p 1", answer="42"),
        PromptRow(id="row-000002", prompt="p 2"),
        PromptRow(id="mine", prompt="\n\nHuman: p 3\n\nAssistant:"),
    ]
    assert loaded.counts["data/prompts_without_answer"] == 2
    with pytest.raises(ConfigError, match=r"row row-000002 = None.*no answer to train on"):
        load_data(asked)
    pairs = load_data(asked.model_copy(update={"rows": 2})).pairs
    assert [row.chosen for row in pairs] == ["a", "42"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "p"}, "needs a column prompt"),
        ({"prompt": 3}, "= 3: needs a column prompt"),
        ({"prompt": "p", "answer": ["a"]}, r"column answer = \['a'\]"),
        ({"prompt": "p", "answer": True}, "column answer = True"),
        (
            {"prompt": [turn("user", "p")]},
            r"data\.chat_model = None: .*row 0 .line 1. holds",
        ),
    ],
)
def test_broken_prompts_are_refused(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_prompts(file_config(write(tmp_path, [row, row]), format="prompts"))


def test_heldout_prompts_stand_nowhere_in_training(tmp_path: Path) -> None:
    rows = [{"prompt": f"p {number % 6}", "answer": "same"} for number in range(18)]
    loaded = load_prompts(file_config(write(tmp_path, rows), format="prompts", heldout_rows=9))
    assert len(loaded.train) == 9
    assert not {row.prompt for row in loaded.train} & {row.prompt for row in loaded.heldout}
    assert len(loaded.heldout) + loaded.counts["data/heldout_rows_in_training"] == 9


def test_word_problems(tmp_path: Path) -> None:
    rows = [{"question": f"How many? {n}", "answer": f"It is {n}.\n#### {n}"} for n in range(3)]
    path = write(tmp_path, rows)
    loaded = load_prompts(file_config(path, format="gsm8k")).train
    assert loaded[1] == PromptRow(
        id="row-000001", prompt="Question: How many? 1\nAnswer:", answer="It is 1.\n#### 1"
    )
    plain = load_prompts(file_config(path, format="gsm8k", chat="plain")).train
    assert plain[1].prompt == "\n\nHuman: How many? 1\n\nAssistant:"
    pairs = load_data(file_config(path, format="gsm8k")).pairs
    assert pairs[2].chosen == " It is 2.\n#### 2" and pairs[2].rejected is None


def test_pairs_are_prompts_too(tmp_path: Path) -> None:
    rows = [{"prompt": f"q {n}", "chosen": f" a {n} ", "rejected": "b"} for n in range(3)]
    loaded = load_prompts(file_config(write(tmp_path, rows)))
    assert loaded.train[0] == PromptRow(id="row-000000", prompt="q 0", answer="a 0")


def test_the_worlds_questions_with_their_values() -> None:
    sizes = WorldConfig(entities=20, train_pairs=8, heldout_pairs=4, corpus_rows=16)
    world, loaded = build_world(sizes), load_prompts(DataConfig(world=sizes))
    assert [row.id for row in loaded.train] == [pair.id for pair in world.pairs]
    assert [row.prompt for row in loaded.heldout] == [pair.prompt for pair in world.heldout]
    for row in [*loaded.train, *loaded.heldout]:
        attribute, entity = row.prompt.split()[3], row.prompt.split()[5]
        assert row.answer == world.truth[entity, attribute]


ROWS: list[dict[str, Any]] = [
    {"prompt": f"question {n} ?", "completion": f" answer {n} .", "label": n % 3 == 0}
    for n in range(12)
]


def config(folder: Path, rows: list[dict[str, Any]], **settings: Any) -> Any:
    return file_config(write(folder, rows), format="unpaired", **settings)


def test_every_row_is_read_for_itself(tmp_path: Path) -> None:
    data = load_data(config(tmp_path, ROWS, heldout_rows=2, probe_pairs=10))
    rows = {row.id: row for row in [*data.pairs, *data.heldout]}
    assert len(rows) == 12
    for number, record in enumerate(ROWS):
        row = rows[f"row-{number:06d}"]
        assert (row.prompt, row.chosen) == (record["prompt"], record["completion"])
        assert (row.label, row.rejected) == (record["label"], None)
    kinds = {(row.pair_id, row.kind) for row in data.probes}
    for row in data.pairs[:10]:
        assert ((row.id, "chosen") in kinds) == row.label
        assert ((row.id, "rejected") in kinds) != row.label


@pytest.mark.parametrize("label", [None, "good", 1])
def test_a_label_is_true_or_false(tmp_path: Path, label: Any) -> None:
    with pytest.raises(ConfigError, match="column label"):
        load_data(config(tmp_path, [*ROWS, ROWS[0] | {"label": label}]))


def test_an_objective_takes_the_rows_that_it_is_for(tmp_path: Path) -> None:
    data, encoder = load_data(config(tmp_path, ROWS)), Encoder(make_tokenizer(), 32, "error")
    file = tmp_path / "train.jsonl"
    write_rows(file, data.pairs)
    labelled = Examples(file, encoder, KTOConfig())
    assert [one.label for one in labelled] == [row.label for row in data.pairs]
    good = Examples(file, encoder, SFTConfig())
    assert [one.id for one in good] == [row.id for row in data.pairs if row.label]
    assert {one.label for one in good} == {None}
    with pytest.raises(ConfigError, match=r"data\.format"):
        Examples(file, encoder, DPOConfig())
    write_rows(file, [row for row in data.pairs if row.label])
    with pytest.raises(ConfigError, match=r"data\.label"):
        Examples(file, encoder, KTOConfig())
    write_rows(file, [row.model_copy(update={"label": None}) for row in data.pairs])
    with pytest.raises(ConfigError, match=r"data\.label"):
        Examples(file, encoder, KTOConfig())
