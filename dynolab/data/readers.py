"""From the records of known formats to examples and probe rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dynolab.data.rows import Example, ProbeRow, Split, spaced
from dynolab.errors import ConfigError

Record = Mapping[str, Any]

ASSISTANT = "\n\nAssistant:"
"""Opens a turn of the assistant in raw HH transcripts (Bai et al., arXiv 2204.05862)."""

STORED_KINDS = {
    "chosen": "the data",
    "chosen_initial": "stored: sampled from the untrained policy",
    "chosen_selfr": "stored: rephrased by the policy itself",
    "chosen_gptsemantic": "stored: same meaning in other words, by a judge-class model",
    "chosen_gptformat": "stored: same format with another meaning, by a judge-class model",
    "rejected": "the data",
    "reject_gptsemantic": "stored: same meaning in other words, by a judge-class model",
    "reject_gptformat": "stored: same format with another meaning, by a judge-class model",
    "irr_train": "stored: chosen answer of another training prompt",
    "irr_test": "stored: chosen answer of a prompt outside the training set",
    "irr_hum": "stored: an unrelated sentence, by a judge-class model",
    "random_permute": "stored: words of the chosen answer, shuffled",
    "random_nonhum": "stored: words of irr_test, shuffled",
}
"""Response fields of the papers' probe files and how their authors made them."""


def read_records(file: Path) -> Iterator[dict[str, Any]]:
    """Objects of a JSON-lines file, plain or gzipped; a bad line is named with its number."""
    number = 0
    try:
        with (
            gzip.open(file, "rt", encoding="utf-8")
            if file.suffix == ".gz"
            else file.open(encoding="utf-8") as lines
        ):
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ConfigError(
                        f"{file.name} line {number}", line.strip()[:80],
                        "every line must be a JSON object, one row each",
                    )  # fmt: skip
                yield record
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(
            "data.path", f"{file.name} line {number + isinstance(error, OSError)}",
            f"cannot be read as JSON lines ({error}); give a .jsonl or .jsonl.gz file",
        ) from error  # fmt: skip


def pairs(records: Iterable[Record], origin: str) -> Iterator[Example]:
    """Records with `prompt`, `chosen` and, where there is one, `rejected`; `id` is kept if given.

    An answer may be a text or a list of chat messages, of which the last one is the answer.
    """
    for number, record in enumerate(records):
        rejected = record.get("rejected")
        yield Example(
            id=str(record.get("id", row_name(number))),
            prompt=_text(record, "prompt", origin, number),
            chosen=answer(_text(record, "chosen", origin, number)),
            rejected=None
            if rejected is None
            else answer(_text(record, "rejected", origin, number)),
        )


def transcripts(records: Iterable[Record], origin: str) -> Iterator[Example | None]:
    """Raw HH records: two transcripts that differ in the assistant's last turn.

    The prompt runs up to and with the last `\\n\\nAssistant:`. None stands for a record whose
    transcripts differ before it: its two answers have no prompt in common.
    """
    for number, record in enumerate(records):
        sides = []
        for column in ("chosen", "rejected"):
            text = _text(record, column, origin, number)
            head, turn, tail = text.rpartition(ASSISTANT)
            if not turn:
                raise ConfigError(
                    f"{origin} row {number}, {column}", text[:80],
                    f"a transcript needs a turn {ASSISTANT!r}; for rows with a prompt column set "
                    "data.format: pairs",
                )  # fmt: skip
            sides.append((head + turn, answer(tail)))
        (prompt, chosen), (other, rejected) = sides
        same = prompt == other
        yield (
            Example(id=row_name(number), prompt=prompt, chosen=chosen, rejected=rejected)
            if same
            else None
        )


def stored_probes(
    record: Record, example: Example, split: Split, trained: frozenset[str]
) -> list[ProbeRow]:
    """Probe rows of the response fields that a probe file stores for one pair.

    Flags: `empty` for a response without words, `in_training` for an `irr_test` that stands among
    the training answers (`trained`) after all.
    """
    rows = []
    for kind, made_by in STORED_KINDS.items():
        if record.get(kind) is None:
            continue
        response = answer(str(record[kind]))
        flags = ("empty",) if not response else ()
        if kind == "irr_test" and response in trained:
            flags = (*flags, "in_training")
        rows.append(
            ProbeRow(
                pair_id=example.id, split=split, kind=kind, prompt=example.prompt,
                response=response, made_by=made_by, flags=flags,
            )
        )  # fmt: skip
    return rows


def row_name(number: int) -> str:
    """Id of a row that brings none."""
    return f"row-{number:06d}"


def answer(text: str) -> str:
    """A response with its one leading space; an empty one stays empty: it says the end at once."""
    return spaced(text) if text.strip() else ""


def _text(record: Record, column: str, origin: str, number: int) -> str:
    if column not in record:
        raise ConfigError(
            f"{origin} row {number}", sorted(record),
            f"column {column!r} is missing; rename the one that holds it, or set data.format to "
            "what the file is",
        )  # fmt: skip
    value = record[column]
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if not isinstance(value, str):
        raise ConfigError(
            f"{origin} row {number}, column {column}", value,
            "must be a text or a list of messages with content",
        )  # fmt: skip
    return value
