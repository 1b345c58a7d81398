"""Names of the sequences of a step: the pairs or rows that they are of."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Literal

from dynolab.data.rows import Example
from dynolab.forces.map.weighted import Updating
from dynolab.integrations.rows import BatchRows, Sequenced

EXCERPT = 160  # characters of a sequence in tables


class SequenceNames:
    """Names sequences, and has the rows of the names.

    **Arguments:** `examples`: pairs whose answers have the pairs' ids; `batch_rows`: rows of the
    step at hand, for other sequences.
    """

    def __init__(self, tokenizer: Any, examples: Sequence[Example], batch_rows: BatchRows) -> None:
        self._tokenizer, self._batch_rows = tokenizer, batch_rows
        self.rows = {example.id: example for example in examples}
        self._ids: dict[tuple[int, ...], str] = {}
        for example in examples:
            for response in filter(None, (example.chosen, example.rejected)):
                ids = tokenizer(example.prompt + response)["input_ids"]
                self._ids[self._content(ids)] = example.id

    def labels(
        self, sequences: Sequence[Sequenced], pushes: Sequence[float]
    ) -> tuple[Updating, ...]:
        """What the sequences of the step's passes are; `pushes`: negative, pushed down."""
        labels = []
        numbers = self._batch_rows.numbers(sequences)
        for (ids, _), push, number in zip(sequences, pushes, numbers, strict=True):
            side: Literal["chosen", "rejected"] = "rejected" if push < 0 else "chosen"
            labels.append(Updating(self._name(ids, number), side, ids))
        return tuple(labels)

    def _name(self, ids: tuple[int, ...], number: int | None) -> str:
        """The pair's id, else the row's name, else a checksum of the sequence's text.

        Puts the row of the name into `rows`; of the last kind it is an excerpt of the text.
        """
        name = self._ids.get(self._content(ids))
        if name is not None:
            return name
        if number is not None:
            name = self._batch_rows.rows.name(number)
            if name not in self.rows:
                self.rows[name] = self._batch_rows.rows.example(number)
            return name
        text = self._tokenizer.decode(ids)  # the unknown token, too
        name = f"{zlib.crc32(text.encode()):08x}"
        self.rows[name] = Example(id=name, prompt=text[-EXCERPT:], chosen="")
        return name

    def _content(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Tokens without those that trainers add at the ends."""
        tokenizer = self._tokenizer
        added = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        return tuple(token for token in ids if token not in added)
