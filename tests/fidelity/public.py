"""Small data sets in the columns and nesting of public ones, with the pairs that they hold."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from dynolab import load_data
from dynolab.data.rows import Example
from dynolab.data.sources.load import file_config
from tests.fidelity.tokenizers import chat_tokenizer

Rows = list[dict[str, Any]]


class Pair(NamedTuple):
    """What a row holds: a text, or messages as (role, content), and two answers."""

    prompt: str | tuple[tuple[str, str], ...]
    chosen: str
    rejected: str | None = None


class Public(NamedTuple):
    """Rows, the kind of file that they are written to, and the pairs in them."""

    rows: Rows
    file: str
    pairs: list[Pair]


ASKED = ("Name a river in Egypt.", "What is 12 plus 30?", "Who wrote Faust?")
GOOD = ("The Nile flows through Egypt.", "It is 42.", "Goethe wrote it.")
BAD = ("The Rhine.", "It is 41.", "I do not know.")
SYSTEM = "You answer in one sentence."
ALL = tuple(zip(ASKED, GOOD, BAD, strict=True))


def talk(*texts: str) -> list[dict[str, str]]:
    """Messages of a user and an assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]


def asked(text: str, *before: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (*before, ("user", text))


CHATS = [Pair(asked(question), good, bad) for question, good, bad in ALL]
TEXTS = [Pair(question, good, bad) for question, good, bad in ALL]
WRITTEN = [Pair(f"Question: {question}\nAnswer:", f" {good} #### 1") for question, good, _ in ALL]


SETS = {
    "ultrafeedback_binarized": Public(
        [
            {
                "prompt": question,
                "prompt_id": f"{number:064x}",
                "chosen": talk(question, good),
                "rejected": talk(question, bad),
                "messages": talk(question, good),
                "score_chosen": 8.5,
                "score_rejected": 4.0,
            }
            for number, (question, good, bad) in enumerate(ALL)
        ],
        "parquet",
        CHATS,
    ),
    "ultrafeedback": Public(
        [
            {
                "source": "evol_instruct",
                "instruction": question,
                "models": ["a", "b", "c"],
                "completions": [
                    {
                        "annotations": {"helpfulness": {"Rating": "4", "Rationale": "Right."}},
                        "custom_system_prompt": "Help.",
                        "model": model,
                        "principle": "helpfulness",
                        "response": text,
                        "overall_score": score,
                        "fine-grained_score": score / 2,
                    }
                    for model, text, score in (
                        ("a", bad, 2.0),
                        ("b", good, 9.0),
                        ("c", "Hm.", 5.0),
                    )
                ],
                "correct_answers": ["None"],
                "incorrect_answers": ["None"],
            }
            for question, good, bad in ALL
        ],
        "jsonl",
        TEXTS,
    ),
    "orca_dpo_pairs": Public(
        [
            {
                "system": "" if number else SYSTEM,
                "question": question,
                "chosen": good,
                "rejected": bad,
            }
            for number, (question, good, bad) in enumerate(ALL)
        ],
        "jsonl",
        [Pair(asked(ASKED[0], ("system", SYSTEM)), GOOD[0], BAD[0]), *TEXTS[1:]],
    ),
    "argilla_orca_pairs": Public(
        [
            {
                "system": SYSTEM,
                "input": question,
                "chosen": good,
                "rejected": bad,
                "generations": [good, bad],
                "order": ["a", "b"],
                "labelling_model": "c",
                "rating": [9.0, 7.0],
                "rationale": "Right.",
                "status": "unchanged",
                "original_chosen": good,
                "original_rejected": bad,
                "chosen_score": 9.0,
                "in_gsm8k_train": False,
            }
            for question, good, bad in ALL
        ],
        "parquet",
        [Pair(asked(question, ("system", SYSTEM)), good, bad) for question, good, bad in ALL],
    ),
    "capybara_preferences": Public(
        [
            {
                "source": "Airoboros",
                "conversation": [{"input": "Hi.", "output": "Hello."}],
                "original_response": good,
                "generation_prompt": ["<s>"],
                "raw_generation_responses": [bad],
                "new_generations": [bad],
                "prompt": "<s>",
                "chosen": talk("Hi.", "Hello.", question, good),
                "rejected": talk("Hi.", "Hello.", question, bad),
                "rating_chosen": 5,
                "rating_rejected": 2,
                "chosen_model": "a",
                "rejected_model": "b",
            }
            for question, good, bad in ALL
        ],
        "arrow",
        [
            Pair(asked(question, ("user", "Hi."), ("assistant", "Hello.")), good, bad)
            for question, good, bad in ALL
        ],
    ),
    "tulu_preference_mix": Public(
        [
            {
                "id": f"tulu_{number}",
                "source": "ai2-adapt-dev/x",
                "prompt": question,
                "chosen": talk(question, good),
                "rejected": talk(question, bad),
                "chosen_model": "a",
                "rejected_model": "b",
            }
            for number, (question, good, bad) in enumerate(ALL)
        ],
        "saved",
        CHATS,
    ),
    "anthropic_hh": Public(
        [
            {side: f"\n\nHuman: {question}\n\nAssistant: {text}" for side, text in sides}
            for question, sides in (
                (question, (("chosen", good), ("rejected", bad))) for question, good, bad in ALL
            )
        ],
        "jsonl.gz",
        [
            Pair(f"\n\nHuman: {question}\n\nAssistant:", f" {good}", f" {bad}")
            for question, good, bad in ALL
        ],
    ),
    "pku_saferlhf": Public(
        [
            {
                "prompt": question,
                "response_0": bad,
                "response_1": good,
                "prompt_source": "x",
                "response_0_source": "a",
                "response_1_source": "b",
                "is_response_0_safe": False,
                "is_response_1_safe": True,
                "response_0_severity_level": 2,
                "response_1_severity_level": 0,
                "better_response_id": 1,
                "safer_response_id": 0,
                "response_0_sha256": "0",
                "response_1_sha256": "1",
            }
            for question, good, bad in ALL
        ],
        "csv",
        TEXTS,
    ),
    "shp": Public(
        [
            {
                "post_id": f"p{number}",
                "domain": "askculinary_train",
                "upvote_ratio": 0.98,
                "history": question,
                "c_root_id_A": "a",
                "c_root_id_B": "b",
                "created_at_utc_A": 1,
                "created_at_utc_B": 2,
                "score_A": 8,
                "score_B": 3,
                "human_ref_A": bad if number else good,
                "human_ref_B": good if number else bad,
                "labels": 0 if number else 1,
                "seconds_difference": 1.0,
                "score_ratio": 2.7,
            }
            for number, (question, good, bad) in enumerate(ALL)
        ],
        "jsonl.zst",
        TEXTS,
    ),
    "helpsteer2": Public(
        [
            {
                "prompt": question,
                "response": text,
                "helpfulness": score,
                "correctness": 3,
                "coherence": 4,
                "complexity": 1,
                "verbosity": 2,
            }
            for question, good, bad in ALL
            for text, score in ((bad, 1), (good, 4))
        ],
        "jsonl.gz",
        TEXTS,
    ),
    "helpsteer3": Public(
        [
            {
                "domain": "general",
                "language": "english",
                "context": talk(question),
                "response1": good if number else bad,
                "response2": bad if number else good,
                "overall_preference": -2 if number else 3,
                "individual_preference": [
                    {"score": 1, "reasoning": "Right.", "feedback1": "Good."}
                ],
            }
            for number, (question, good, bad) in enumerate(ALL)
        ],
        "json",
        CHATS,
    ),
    "nectar": Public(
        [
            {
                "prompt": f"\n\nHuman: {question}\n\nAssistant: ",
                "answers": [
                    {"answer": text, "model": model, "rank": rank}
                    for text, model, rank in (
                        (bad, "a", 7.0),
                        (good, "b", 1.0),
                        ("Hm.", "c", 3.0),
                    )
                ],
                "turns": 1,
                "num_responses": 3,
                "source": ["x"],
                "good_natured": True,
            }
            for question, good, bad in ALL
        ],
        "parquet",
        [Pair(f"\n\nHuman: {question}\n\nAssistant: ", good, bad) for question, good, bad in ALL],
    ),
    "step_dpo": Public(
        [
            {
                "dataset": "gsm8k_synthetic",
                "prompt": question,
                "answer": "42",
                "initial_reason_steps": "Let's think step by step.\nStep 1:",
                "chosen": f" {good}",
                "rejected": f" {bad}",
                "full_chosen": f"{good} So it is.",
                "full_rejected": f"{bad} So it is.",
            }
            for question, good, bad in ALL
        ],
        "jsonl",
        [
            Pair(f"{question}\nLet's think step by step.\nStep 1:", f" {good}", f" {bad}")
            for question, good, bad in ALL
        ],
    ),
    "kto_mix": Public(
        [
            {"prompt": talk(question), "completion": talk("", text)[1:], "label": label}
            for question, good, bad in ALL
            for text, label in ((good, True), (bad, False))
        ],
        "parquet",
        CHATS,
    ),
    "sharegpt": Public(
        [
            {
                "id": f"x_{number}",
                "conversations": [
                    {"from": "system", "value": SYSTEM},
                    {"from": "human", "value": question},
                    {"from": "gpt", "value": good},
                ],
            }
            for number, (question, good, _) in enumerate(ALL)
        ],
        "json",
        [Pair(asked(question, ("system", SYSTEM)), good) for question, good, _ in ALL],
    ),
    "sharegpt_preferences": Public(
        [
            {
                "conversations": [{"from": "human", "value": question}],
                "chosen": {"from": "gpt", "value": good},
                "rejected": {"from": "gpt", "value": bad},
            }
            for question, good, bad in ALL
        ],
        "jsonl",
        CHATS,
    ),
    "axolotl_preferences": Public(
        [
            {
                "messages": talk(question),
                "chosen": talk("", good)[1],
                "rejected": talk("", bad)[1],
            }
            for question, good, bad in ALL
        ],
        "jsonl",
        CHATS,
    ),
    "axolotl_conversation": Public(
        [
            {"conversation": talk(question), "chosen": good, "rejected": bad}
            for question, good, bad in ALL
        ],
        "parquet",
        CHATS,
    ),
    "openrlhf_preferences": Public(
        [
            {
                "context_messages": talk(question),
                "chosen": talk("", good)[1:],
                "rejected": talk("", bad)[1:],
            }
            for question, good, bad in ALL
        ],
        "jsonl",
        CHATS,
    ),
    "swift_preferences": Public(
        [
            {"messages": talk(question, good), "rejected_messages": talk(question, bad)}
            for question, good, bad in ALL
        ],
        "jsonl",
        CHATS,
    ),
    "swift_responses": Public(
        [
            {"messages": talk(question, good), "rejected_response": bad}
            for question, good, bad in ALL
        ],
        "json",
        CHATS,
    ),
    "prompt_completion": Public(
        [{"prompt": question, "completion": f" {good}"} for question, good, _ in ALL],
        "csv",
        [Pair(question, f" {good}") for question, good, _ in ALL],
    ),
    "alpaca": Public(
        [{"instruction": question, "input": "", "output": good} for question, good, _ in ALL],
        "json",
        [Pair(question, good) for question, good, _ in ALL],
    ),
    "gsm8k": Public(
        [{"question": question, "answer": f"{good} #### 1"} for question, good, _ in ALL],
        "arrow",
        WRITTEN,
    ),
    "distilabel_math": Public(
        [
            {
                "metadata": "{}",
                "instruction": question,
                "chosen_response": good,
                "rejected_response": bad,
                "chosen_rating": 9.0,
                "rejected_rating": 6.0,
            }
            for question, good, bad in ALL
        ],
        "jsonl",
        TEXTS,
    ),
    "skywork_preferences": Public(
        [
            {
                "chosen": talk(question, good),
                "rejected": talk(question, bad),
                "source": "magpie",
            }
            for question, good, bad in ALL
        ],
        "saved",
        CHATS,
    ),
}


def written(rows: Rows, kind: str, folder: Path) -> Path:
    """A file of rows; `saved` is a folder of `save_to_disk`, `json` an array."""
    path = folder / f"rows.{kind}"
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    contents = {
        "jsonl": lambda: lines,
        "json": lambda: json.dumps(rows, indent=1).encode(),
        "jsonl.gz": lambda: gzip.compress(lines),
        "jsonl.zst": lambda: zstandard.compress(lines),
    }
    if kind in contents:
        path.write_bytes(contents[kind]())
        return path
    data = Dataset.from_list(rows)
    if kind == "saved":
        data.save_to_disk(path)
    elif kind == "arrow":
        data.save_to_disk(folder / "saved")
        return next((folder / "saved").glob("*.arrow"))
    else:
        getattr(data, f"to_{kind}")(path)
    return path


def read_pairs(file: Path, tokenizer: PreTrainedTokenizerBase) -> list[Example]:
    """All rows of a file as a study reads them, none held out."""
    config = file_config(file, str(tokenizer.name_or_path))
    config = config.model_copy(update={"heldout_rows": 0, "probe_pairs": 0})
    return load_data(config, tokenizer).pairs


def difference(public: Public, tokenizer: PreTrainedTokenizerBase, folder: Path) -> str:
    """How what is read of a data set differs from its pairs; empty if it does not."""
    rows = read_pairs(written(public.rows, public.file, folder), tokenizer)
    found = [Pair(row.prompt, row.chosen, row.rejected) for row in rows]
    chat = any(not isinstance(pair.prompt, str) for pair in public.pairs)
    wanted = [_rendered(pair, tokenizer) for pair in public.pairs] if chat else public.pairs
    different = [(one, other) for one, other in zip(wanted, found, strict=False) if one != other]
    if len(found) != len(wanted):
        return f"{len(wanted)} pairs, read {len(found)}"
    return f"{different[0][0]} read as {different[0][1]}" if different else ""


def _rendered(pair: Pair, tokenizer: PreTrainedTokenizerBase) -> Pair:
    """A pair as the tokenizer's template (ChatML) writes it."""
    turns = asked(pair.prompt) if isinstance(pair.prompt, str) else pair.prompt
    messages = [{"role": role, "content": text} for role, text in turns]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answers = (pair.chosen, pair.rejected)
    return Pair(str(prompt), *[None if a is None else f"{a}<|im_end|>\n" for a in answers])  # type: ignore[arg-type]


def measure(home: Path) -> dict[str, int]:
    """How many data sets are read as they are meant; the others are printed to stderr."""
    tokenizer = chat_tokenizer("chatml", home)
    recognised = 0
    for name, public in SETS.items():
        folder = home / "public" / name
        folder.mkdir(parents=True)
        try:
            what = difference(public, tokenizer, folder)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
        recognised += not what
        if what:
            print(name, what, sep="\t", file=sys.stderr)
    return {"public_datasets": len(SETS), "public_datasets_recognised": recognised}
