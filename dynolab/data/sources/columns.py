"""Public data sets' columns as `prompt`, `chosen` and `rejected`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from dynolab.data.chat import is_messages
from dynolab.data.sources.files import Record, place
from dynolab.errors import reading

ASSISTANT = "\n\nAssistant:"
"""Opens a turn of the assistant in raw HH transcripts (Bai et al., arXiv 2204.05862)."""

SHARED = ("id", "wins", "weight", "tools", "chat_template_kwargs")
"""Columns that are read of rows of every form."""

_ASKED = ("prompt", "question", "instruction", "input")

_TURNS = ("conversations", "context_messages", "messages", "conversation")
"""Columns of the messages before two answers: of ShareGPT, OpenRLHF and (the last two) axolotl."""


@dataclass(frozen=True)
class Form:
    """Columns of a kind of data set.

    `needs`: columns that identify it; `reads`: further columns that are read; `pair`: makes
    `prompt`, `chosen`, `rejected` (and `system`) of a record, or None of one that holds no pair.
    """

    needs: tuple[str, ...]
    pair: Callable[[Record], dict[str, Any] | None]
    reads: tuple[str, ...] = ()


def _preference(record: Record) -> dict[str, Any]:
    """Two answers to a prompt, whose column has one of several names.

    A `system` column beside a question, as of orca's pairs, makes messages of a row; beside a
    `prompt` trainers do not read it. Step-DPO's answers continue `initial_reason_steps`. Of
    messages before the answers, see `_turns_before`.
    """
    pair: dict[str, Any] = {side: record[side] for side in ("chosen", "rejected") if side in record}
    prompt_column = next((name for name in _ASKED if record.get(name) is not None), None)
    before = _turns_before(record)
    if before:
        pair["prompt"] = record[before]
    elif prompt_column is not None:
        pair["prompt"] = record[prompt_column]
        if prompt_column == "instruction" and record.get("input"):
            pair["prompt"] += f"\n\n{record['input']}"
        if prompt_column != "prompt" and "system" in record:
            pair["system"] = record["system"]
    steps = record.get("initial_reason_steps")
    if isinstance(steps, str) and steps and prompt_column:
        pair["prompt"] = f"{pair['prompt']}\n{steps}"
    return pair


def _turns_before(record: Record) -> str | None:
    """The column of the messages before the answers, if there is one.

    axolotl's repeat what a prompt, or answers with their own questions, say; beside answers alone
    they are the prompt.
    """
    name = next((name for name in _TURNS if record.get(name) is not None), None)
    if name not in _TURNS[2:]:
        return name
    chosen = record.get("chosen")
    first = chosen[0] if isinstance(chosen, list) and chosen else chosen
    speaks = first.get("role", first.get("from")) if isinstance(first, Mapping) else "assistant"
    has_prompt = any(record.get(prompt_column) is not None for prompt_column in _ASKED)
    return name if speaks in ("assistant", "gpt") and not has_prompt else None


def _best_and_worst(
    prompt: Any, answers: Sequence[Any], scores: Sequence[Any]
) -> dict[str, Any] | None:
    """The answers with the highest and the lowest score, which must differ."""
    scored = []
    for answer, score in zip(answers, scores, strict=True):
        if isinstance(score, int | float) and score == score:
            scored.append((float(score), answer))
    if not scored:
        return None
    best, worst = max(scored, key=itemgetter(0)), min(scored, key=itemgetter(0))
    if best[0] == worst[0]:
        return None
    return {"prompt": prompt, "chosen": best[1], "rejected": worst[1]}


def _ultrafeedback(record: Record) -> dict[str, Any] | None:
    answers = record["completions"]
    scores = [answer.get("overall_score", answer.get("fine-grained_score")) for answer in answers]
    return _best_and_worst(record["instruction"], [a.get("response") for a in answers], scores)


def _nectar(record: Record) -> dict[str, Any] | None:
    answers = record["answers"]
    ranks = [-answer["rank"] for answer in answers]
    return _best_and_worst(record["prompt"], [answer["answer"] for answer in answers], ranks)


def _safe_rlhf(record: Record) -> dict[str, Any]:
    better = int(record["better_response_id"])
    return {
        "prompt": record["prompt"],
        "chosen": record[f"response_{better}"],
        "rejected": record[f"response_{1 - better}"],
    }


def _shp(record: Record) -> dict[str, Any]:
    sides = record["human_ref_A"], record["human_ref_B"]
    chosen, rejected = sides if record["labels"] == 1 else sides[::-1]
    return {"prompt": record["history"], "chosen": chosen, "rejected": rejected}


def _two_responses(record: Record) -> dict[str, Any] | None:
    """HelpSteer3: a preference below zero is for the first response."""
    preference = record["overall_preference"]
    sides = record["response1"], record["response2"]
    chosen, rejected = sides if preference < 0 else sides[::-1]
    pair = {"prompt": record["context"], "chosen": chosen, "rejected": rejected}
    return pair if preference else None


def _answered(prompt_column: str, answer: str) -> Callable[[Record], dict[str, Any]]:
    def pair(record: Record) -> dict[str, Any]:
        return _preference({**record, "prompt": record[prompt_column], "chosen": record[answer]})

    return pair


def _alpaca(record: Record) -> dict[str, Any]:
    return _preference(record) | {"chosen": record["output"]}


def _messages(record: Record) -> dict[str, Any]:
    """A conversation; its last turn is the answer."""
    return {"chosen": record.get("messages", record.get("conversations"))}


def _two_conversations(record: Record) -> dict[str, Any]:
    """swift: two conversations, or one and another last turn; their common turns are the prompt."""
    chosen, rejected = record["messages"], record.get("rejected_messages")
    if rejected is None and (answer := record.get("rejected_response")) is not None:
        rejected = [*chosen[:-1], {"role": "assistant", "content": answer}]
    return {"chosen": chosen, "rejected": rejected}


def _distilabel(record: Record) -> dict[str, Any]:
    sides = {side: record[f"{side}_response"] for side in ("chosen", "rejected")}
    return _preference({**record, **sides})


def _full_answers(record: Record) -> dict[str, Any]:
    """Step-DPO without its single steps."""
    sides = {side: record.get(f"full_{side}") for side in ("chosen", "rejected")}
    return {"prompt": record.get("prompt"), **sides}


FORMS = (
    Form(("chosen",), _preference, (*_ASKED, *_TURNS, "rejected", "initial_reason_steps")),
    Form(("chosen_response", "rejected_response"), _distilabel, _ASKED),
    Form(("full_chosen",), _full_answers, ("prompt", "full_rejected")),
    Form(("prompt", "completion"), _answered("prompt", "completion"), ("label",)),
    Form(("instruction", "completions"), _ultrafeedback),
    Form(("prompt", "answers"), _nectar),
    Form(("prompt", "better_response_id"), _safe_rlhf, ("response_0", "response_1")),
    Form(("history", "human_ref_A", "human_ref_B", "labels"), _shp),
    Form(("context", "response1", "response2", "overall_preference"), _two_responses),
    Form(("prompt", "response"), _answered("prompt", "response"), ("helpfulness",)),
    Form(("instruction", "output"), _alpaca, ("input",)),
    Form(("messages", "rejected_messages"), _two_conversations),
    Form(("messages", "rejected_response"), _two_conversations),
    Form(("messages",), _messages),
    Form(("conversations",), _messages),
    Form(("prompt", "answer"), _answered("prompt", "answer")),
)


def form_of(record: Record) -> Form | None:
    """The form of a record; None for one that holds no pair."""
    return next((form for form in FORMS if set(form.needs) <= set(record)), None)


def as_pairs(
    records: Sequence[Record], origin: str
) -> Iterator[tuple[int, Record, dict[str, Any] | None]]:
    """Yields each record's number, the record, and its pair, or None if it holds none.

    The rows of a prompt whose answers have scores (HelpSteer) or labels (KTO) make a pair.

    **Raises:** `ConfigError` naming `origin` for a record whose columns hold something else.
    """
    first = records[0] if records else {}
    with reading(origin, sorted(first), OTHERWISE):
        if {"prompt", "completion", "label"} <= set(first):
            yield from _labelled(list(enumerate(records)))
        elif {"prompt", "response", "helpfulness"} <= set(first):
            yield from _scored(list(enumerate(records)))
        else:
            for number, record in enumerate(records):
                form = form_of(record)
                with reading(place(record, origin, number), sorted(record), OTHERWISE):
                    pair = None if form is None else form.pair(record)
                yield number, record, pair


OTHERWISE = "its columns have names of a known form and hold something else; set data.columns"


def _labelled(
    rows: Sequence[tuple[int, Record]],
) -> Iterator[tuple[int, Record, dict[str, Any] | None]]:
    """KTO's rows: a prompt's good and bad completions in pairs; what is left makes none.

    Where no prompt has both, the good completions are read alone.
    """
    kinds: dict[str, tuple[list[tuple[int, Record]], list[tuple[int, Record]]]] = {}
    for number, record in rows:
        sides = kinds.setdefault(str(record["prompt"]), ([], []))
        sides[0 if record["label"] else 1].append((number, record))
    paired = any(good and bad for good, bad in kinds.values())
    for good, bad in kinds.values():
        for position in range(max(len(good), len(bad))):
            number, record = (good if position < len(good) else bad)[position]
            pair: dict[str, Any] | None = None
            if position < len(good) and (position < len(bad) or not paired):
                pair = {"prompt": record["prompt"], "chosen": record["completion"]}
            if pair and position < len(bad):
                pair["rejected"] = bad[position][1]["completion"]
            yield number, record, pair


def _scored(
    rows: Sequence[tuple[int, Record]],
) -> Iterator[tuple[int, Record, dict[str, Any] | None]]:
    """HelpSteer's rows: of a prompt's responses in a row, the most and the least helpful one."""
    for prompt, group in groupby(rows, key=lambda row: row[1]["prompt"]):
        responses = list(group)
        scores = [record["helpfulness"] for _, record in responses]
        answers = [record["response"] for _, record in responses]
        yield *responses[0], _best_and_worst(prompt, answers, scores)


def format_of(record: Mapping[str, Any]) -> str:
    """The `data.format` that a record looks like."""
    form = form_of(record)
    if form is None:
        return "gsm8k" if {"question", "answer"} <= set(record) else "pairs"
    pair = form.pair(record) or {}
    if any(map(is_messages, pair.values())) or "system" in pair:
        return "chat"
    implicit = isinstance(pair.get("chosen"), str) and pair.get("prompt") is None
    return "hh" if implicit and ASSISTANT in pair["chosen"] else "pairs"


def read_line(records: Sequence[Record], form: Form | None) -> str:
    """Which columns are read, and which are not: "read: prompt, chosen; ignored: score"."""
    columns = list(dict.fromkeys(chain.from_iterable(records)))
    readable = {*(form.needs + form.reads if form else ()), *SHARED}
    if form in FORMS[:2]:  # of several columns that can hold the prompt, the first is read
        prompt_columns = [name for name in _ASKED if name in columns]
        turns = _turns_before(records[0])
        readable -= set(_TURNS) - {turns}
        first = prompt_columns[0] if prompt_columns else None
        if first != "instruction" or turns:
            readable -= set(prompt_columns[1:])
        if first not in (None, "prompt"):
            readable.add("system")
    read = [name for name in columns if name in readable]
    ignored = [name for name in columns if name not in readable]
    line = f"read: {', '.join(read)}"
    return f"{line}; ignored: {', '.join(ignored)}" if ignored else line
