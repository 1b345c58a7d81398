"""Encodes prompts and responses separately, and handles rows that exceed the context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dynolab.data.rows import Example, ProbeRow
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Overlong = Literal["error", "drop", "truncate_left"]

ANCHOR = "\n"
"""Prefix of a response while it is encoded: sentencepiece tokenizers prepend a space to every text,
but a response continues its prompt."""


@dataclass(frozen=True)
class Encoded:
    """Token ids of one prompt with one response; the response is `ids[prompt_length:]`."""

    ids: tuple[int, ...]
    prompt_length: int

    @property
    def response_length(self) -> int:
        """Response tokens, end-of-sequence included."""
        return len(self.ids) - self.prompt_length


@dataclass(frozen=True)
class EncodedExample:
    """An encoded example: one sequence per side, and the pair's `wins`."""

    id: str
    chosen: Encoded
    rejected: Encoded | None
    wins: tuple[float, float] | None = None


@dataclass
class Counts:
    """How many rows were kept, truncated and dropped; logged by every stage that encodes."""

    kept: int = 0
    truncated: int = 0
    dropped: int = 0
    dropped_ids: list[str] = field(default_factory=list)
    unknown: UnknownTokens = field(default_factory=UnknownTokens)
    """Of the answers of examples; not of probes, which are the same answers and others."""

    def as_metrics(self) -> dict[str, int]:
        """The counts under their metric names."""
        return {
            "data/rows_kept": self.kept,
            "data/rows_truncated": self.truncated,
            "data/rows_dropped": self.dropped,
            **self.unknown.as_metrics(),
        }


class Encoder:
    """Encodes prompts and responses for one model.

    **Arguments:**

    - `tokenizer`: prompts are encoded with its special tokens, responses without them and with
      its end-of-sequence token appended. They are encoded separately, so that the boundary
      between them never depends on the response.
    - `max_length`: the model's context in tokens.
    - `overlong`: what happens to rows that exceed `max_length`: `error` raises, `drop` leaves
      them out, `truncate_left` cuts the prompt's oldest tokens (a row whose response alone does
      not fit is dropped).
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, overlong: Overlong
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                "model.tokenizer.eos_token", None, "name an end-of-sequence token in the tokenizer"
            )
        self.tokenizer, self.max_length, self.overlong = tokenizer, max_length, overlong
        self.counts = Counts()

    def example(self, row: Example) -> EncodedExample | None:
        """Both sides of an example, or None if the overlong rule drops it."""
        texts = [row.chosen] if row.rejected is None else [row.chosen, row.rejected]
        sides = self._encode_sides(row.id, row.prompt, texts)
        if sides is None:
            return None
        for side, text in zip(sides, texts, strict=True):
            answer = side.ids[side.prompt_length : -1]
            self.counts.unknown.add(self.tokenizer, answer, text)
        rejected = sides[1] if row.rejected is not None else None
        return EncodedExample(row.id, sides[0], rejected, row.wins)

    def response(self, name: str, prompt: str, response: str) -> Encoded | None:
        """One prompt with one response, or None if the overlong rule drops it."""
        sides = self._encode_sides(name, prompt, [response])
        return None if sides is None else sides[0]

    def responses(self, name: str, prompt: str, texts: Sequence[str]) -> list[Encoded | None]:
        """One prompt with several responses; None for those that the overlong rule drops.

        A prompt that must be cut is cut to the same tokens for all responses that can fit, so that
        compared responses answer the same question.
        """
        whole, tails = self._prompt_ids(name, prompt), self._encode_responses(texts)
        common = whole
        if self.overlong == "truncate_left":
            excess = (len(whole) + len(tail) - self.max_length for tail in tails)
            cuts = (cut_left(self.tokenizer, whole, tokens) for tokens in excess if tokens > 0)
            common = min((cut for cut in cuts if cut), key=len, default=whole)
        encoded = []
        for tail in tails:
            kept = self._fit_prompt(name, common, len(tail))
            self.counts.truncated += kept is not None and kept is not whole
            encoded.append(None if kept is None else Encoded((*kept, *tail), len(kept)))
        return encoded

    def probes(self, rows: Sequence[ProbeRow]) -> list[Encoded | None]:
        """Encodes rows; rows with the same prompt are encoded together by `responses`."""
        by_prompt: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            by_prompt.setdefault(row.prompt, []).append(number)
        encoded_rows: list[Encoded | None] = [None] * len(rows)
        for prompt, members in by_prompt.items():
            texts = [rows[number].response for number in members]
            responses = self.responses(rows[members[0]].pair_id, prompt, texts)
            for number, encoded in zip(members, responses, strict=True):
                encoded_rows[number] = encoded
        return encoded_rows

    def prompt(self, name: str, prompt: str, room: int) -> tuple[int, ...] | None:
        """A prompt, cut if necessary to leave room for `room` tokens; None if it is dropped."""
        kept = self._fit_prompt(name, self._prompt_ids(name, prompt), room)
        return None if kept is None else tuple(kept)

    def examples(self, rows: Iterable[Example]) -> list[EncodedExample]:
        """All rows that the overlong rule keeps; raises `ConfigError` if there are none."""
        encoded = [example for row in rows if (example := self.example(row)) is not None]
        if not encoded:
            raise ConfigError(
                "data",
                f"0 rows kept, {self.counts.dropped} dropped as overlong",
                "give data with rows that fit the model's context, or set overlong: truncate_left",
            )
        return encoded

    def _encode_sides(
        self, name: str, prompt: str, responses: Sequence[str]
    ) -> list[Encoded] | None:
        prompt_ids = self._prompt_ids(name, prompt)
        tails = self._encode_responses(responses)
        kept = self._fit_prompt(name, prompt_ids, max(map(len, tails)))
        return None if kept is None else [Encoded((*kept, *tail), len(kept)) for tail in tails]

    def _prompt_ids(self, name: str, prompt: str) -> list[int]:
        ids = encode_prompt(self.tokenizer, prompt)
        if not ids:
            raise ConfigError(
                f"prompt of row {name}", prompt, "it has no tokens; give every row a prompt"
            )
        return ids

    def _fit_prompt(self, name: str, prompt_ids: list[int], room: int) -> list[int] | None:
        """Applies the overlong rule to a prompt before `room` tokens; counts the outcome."""
        excess = len(prompt_ids) + room - self.max_length
        kept = self._shorten(name, prompt_ids, excess) if excess > 0 else prompt_ids
        if kept is None:
            self.counts.dropped += 1
            self.counts.dropped_ids.append(name)
        else:
            self.counts.kept += 1
        return kept

    def _encode_responses(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each response without the anchor's, followed by end-of-sequence."""
        written = [ANCHOR, *(ANCHOR + text for text in texts)]
        anchored = self.tokenizer(written, add_special_tokens=False)["input_ids"]
        anchor, tails = list(anchored[0]), []
        for text, ids in zip(texts, anchored[1:], strict=True):
            merged = list(ids[: len(anchor)]) != anchor
            if merged:
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            own = ids if merged else ids[len(anchor) :]
            tails.append([*own, self.tokenizer.eos_token_id])
        return tails

    def _shorten(self, name: str, prompt_ids: list[int], excess: int) -> list[int] | None:
        if self.overlong == "error":
            raise ConfigError(
                "overlong",
                "error",
                f"row {name} exceeds the model's context of {self.max_length} tokens by {excess}; "
                "set overlong to drop or truncate_left, or use a model with a longer context",
            )
        if self.overlong == "drop":
            return None
        kept = cut_left(self.tokenizer, prompt_ids, excess)
        if not kept:
            return None  # the response alone does not fit
        self.counts.truncated += 1
        return kept


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str) -> list[int]:
    """Tokens of a prompt, without the end-of-sequence that some tokenizers append to every text."""
    ids = list(tokenizer(prompt)["input_ids"])
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids


def cut_left(tokenizer: PreTrainedTokenizerBase, prompt: list[int], excess: int) -> list[int]:
    """A prompt without its `excess` oldest tokens, begin-of-sequence kept; empty if too short."""
    bos = tokenizer.bos_token_id
    head = prompt[:1] if bos is not None and prompt[0] == bos else []
    body = prompt[len(head) :]
    return head + body[excess:] if excess <= len(body) else []
