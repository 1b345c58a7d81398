"""Encodes prompts with their responses, and handles rows that exceed the context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dynolab.data.rows import Example, ProbeRow, Turn, common_length
from dynolab.data.unknown import UnknownTokens
from dynolab.errors import ConfigError
from dynolab.grouping import grouped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Overlong = Literal["error", "drop", "truncate_left", "keep_start", "keep_end"]


@dataclass(frozen=True)
class Encoded:
    """Token ids of one prompt with one response; the response is `ids[prompt_length:]`.

    `trained`: the places in `ids` of the response's tokens that count, rising from `prompt_length`,
    where not all do: a conversation's other turns, or results of tools, stand between them.
    """

    ids: tuple[int, ...]
    prompt_length: int
    trained: tuple[int, ...] = ()

    @property
    def positions(self) -> Sequence[int]:
        """Places in `ids` of the response's tokens that count."""
        return self.trained or range(self.prompt_length, len(self.ids))

    @property
    def response_length(self) -> int:
        """Response tokens that count, end-of-sequence included."""
        return len(self.positions)


@dataclass(frozen=True)
class EncodedExample:
    """An encoded example: one sequence per side, with `wins`, `weight` and `label` of its row."""

    id: str
    chosen: Encoded
    rejected: Encoded | None
    wins: tuple[float, float] | None = None
    weight: float | None = None
    label: bool | None = None


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
    """Encodes prompts and responses for one model, as TRL does.

    A prompt is encoded alone and with its response. The response begins where both differ, which is
    before the prompt's end if tokens merge over the boundary; a pair's prompt is what its two sides
    have in common. A text gets the tokenizer's special tokens, and an end-of-sequence token unless
    it ends with one; what a chat template wrote (a row with a `turn`) has all of its tokens.

    **Arguments:**

    - `tokenizer`: the model's.
    - `max_length`: the model's context in tokens.
    - `overlong`: what happens to rows that exceed `max_length`: `error` raises, `drop` leaves
      them out, `truncate_left` cuts the prompt's oldest tokens (a row whose response alone does
      not fit is dropped). TRL's `keep_start` keeps a row's first tokens (a row whose prompt alone
      does not fit is dropped), its `keep_end` the last ones.
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
        sequences = self._whole(row.prompt, texts, row.turn)
        common = min(side.prompt_length for side in sequences)
        sides = self._fitted(row.id, [Encoded(side.ids, common) for side in sequences])
        if sides is None:
            return None
        for side, text in zip(sides, texts, strict=True):
            self.counts.unknown.add(self.tokenizer, side.ids[side.prompt_length : -1], text)
        rejected = sides[1] if row.rejected is not None else None
        return EncodedExample(row.id, sides[0], rejected, row.wins, row.weight, row.label)

    def response(
        self, name: str, prompt: str, response: str, turn: Turn | None = None
    ) -> Encoded | None:
        """One prompt with one response, or None if the overlong rule drops it."""
        return self.responses(name, prompt, [response], turn)[0]

    def responses(
        self, name: str, prompt: str, texts: Sequence[str], turn: Turn | None = None
    ) -> list[Encoded | None]:
        """One prompt with several responses; None for those that the overlong rule drops.

        Under `truncate_left` a prompt that must be cut is cut by as many tokens for all responses
        that can fit, so that compared responses answer the same question.
        """
        sequences = self._whole(prompt, texts, turn)
        cut = 0
        if self.overlong == "truncate_left":
            excesses = ((side, len(side.ids) - self.max_length) for side in sequences)
            cut = max((more for side, more in excesses if self._cut(side, more)), default=0)
        fitted = (self._fitted(name, [side], cut) for side in sequences)
        return [None if sides is None else sides[0] for sides in fitted]

    def probe(self, row: ProbeRow) -> Encoded | None:
        """One probe row, or None if the overlong rule drops it."""
        return self.response(row.pair_id, row.prompt, row.response, row.turn)

    def probes(self, rows: Sequence[ProbeRow]) -> list[Encoded | None]:
        """Encodes rows; rows with the same prompt are encoded together by `responses`."""
        by_prompt = grouped(((row.prompt, row.turn), number) for number, row in enumerate(rows))
        encoded_rows: list[Encoded | None] = [None] * len(rows)
        for (prompt, turn), members in by_prompt.items():
            texts = [rows[number].response for number in members]
            responses = self.responses(rows[members[0]].pair_id, prompt, texts, turn)
            for number, encoded in zip(members, responses, strict=True):
                encoded_rows[number] = encoded
        return encoded_rows

    def prompt(
        self, name: str, prompt: str, room: int, turn: Turn | None = None
    ) -> tuple[int, ...] | None:
        """A prompt, cut if necessary to leave room for `room` tokens; None if it is dropped."""
        ids = encode_prompt(self.tokenizer, prompt, turn)
        if not ids:
            raise ConfigError(
                f"prompt of row {name}", prompt, "it has no tokens; give every row a prompt"
            )
        # Only the beginning of a prompt is ever cut: `keep_start` drops it.
        length = len(ids) if self.overlong == "truncate_left" else len(ids) + room
        full = Encoded((*ids, *[self.tokenizer.eos_token_id] * room), length)
        fitted = self._fitted(name, [full])
        return None if fitted is None else fitted[0].ids[: len(fitted[0].ids) - room]

    def examples(self, rows: Iterable[Example]) -> list[EncodedExample]:
        """All rows that the overlong rule keeps; raises `ConfigError` if there are none."""
        encoded = [example for row in rows if (example := self.example(row)) is not None]
        self.check_kept(len(encoded))
        return encoded

    def check_kept(self, rows: int) -> None:
        """Raises `ConfigError` if no row was kept."""
        if not rows:
            raise ConfigError(
                "data",
                f"0 rows kept, {self.counts.dropped} dropped as overlong",
                "give data with rows that fit the model's context, or set overlong: truncate_left",
            )

    def _whole(self, prompt: str, texts: Sequence[str], turn: Turn | None) -> list[Encoded]:
        """Each response with its prompt, however long."""
        end = "" if turn else str(self.tokenizer.eos_token)
        written = [prompt + (text if text.endswith(end) else text + end) for text in texts]
        alone, *with_answers = self.tokenizer([prompt, *written], add_special_tokens=turn is None)[
            "input_ids"
        ]
        return [Encoded(tuple(ids), max(1, common_length(alone, ids))) for ids in with_answers]

    def _fitted(self, name: str, sides: list[Encoded], cut: int = 0) -> list[Encoded] | None:
        """A row's sides under the overlong rule, which counts the row; None if it is dropped.

        **Arguments:** `cut`: tokens that `truncate_left` cuts at least.
        """
        excess = max(max(len(side.ids) for side in sides) - self.max_length, cut)
        fitted: list[Encoded | None] = list(sides)
        if excess > 0:
            if self.overlong == "error":
                raise ConfigError(
                    "overlong",
                    "error",
                    f"row {name} exceeds the model's context of {self.max_length} tokens by "
                    f"{excess}; set overlong to drop, truncate_left, keep_start or keep_end, or "
                    "use a model with a longer context",
                )
            fitted = [self._cut(side, excess) for side in sides]
        present = [side for side in fitted if side is not None]
        if len(present) < len(sides):
            self.counts.dropped += 1
            self.counts.dropped_ids.append(name)
            return None
        self.counts.kept += 1
        self.counts.truncated += excess > 0
        return present

    def _cut(self, side: Encoded, excess: int) -> Encoded | None:
        """A side without `excess` tokens, by the overlong rule; None if it leaves nothing."""
        ids, length = side.ids, side.prompt_length
        if excess <= 0:
            return side
        if self.overlong == "truncate_left":
            prompt = cut_left(self.tokenizer, ids[:length], excess)
            return Encoded((*prompt, *ids[length:]), len(prompt)) if prompt else None
        if self.overlong == "keep_start" and length < self.max_length:
            return Encoded(ids[: self.max_length], length)
        if self.overlong == "keep_end":
            # A first token that belongs to the response is predicted by nothing.
            ending = ids[-self.max_length :]
            return Encoded(ending, max(1, length - (len(ids) - len(ending))))
        return None


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase, prompt: str, turn: Turn | None = None
) -> list[int]:
    """Tokens of a prompt, without the end-of-sequence that some tokenizers append to every text."""
    ids = list(tokenizer(prompt, add_special_tokens=turn is None)["input_ids"])
    appended = turn is None and ids and ids[-1] == tokenizer.eos_token_id
    return ids[:-1] if appended else ids


def cut_left(
    tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], excess: int
) -> tuple[int, ...]:
    """A prompt without its `excess` oldest tokens, begin-of-sequence kept; empty if too short."""
    bos = tokenizer.bos_token_id
    head = tuple(prompt[:1]) if bos is not None and prompt[0] == bos else ()
    body = tuple(prompt[len(head) :])
    return head + body[excess:] if excess <= len(body) else ()
