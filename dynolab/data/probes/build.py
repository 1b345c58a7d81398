"""Builds the probe rows that need no language model, and reads those that were built before."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dynolab.data.probes.kinds import DATA_KINDS, DataKind
from dynolab.data.probes.overlap import bare, disjoint
from dynolab.data.rows import Example, ProbeRow, Row, Split, in_place_of, read_rows
from dynolab.errors import ConfigError

MADE_BY: dict[DataKind, str] = {
    "chosen": "the data",
    "rejected": "the data",
    "irr_train": "chosen answer of another training prompt",
    "irr_test": "chosen answer of a prompt outside the training rows",
    "random_permute": "words of the chosen answer, shuffled",
    "random_nonhum": "words of irr_test, shuffled",
}


class Watched(NamedTuple):
    """A pair to make probes of, and its split."""

    example: Example
    split: Split

    def row(self, kind: str, response: str, made_by: str, *flags: str) -> ProbeRow:
        """A probe row of this pair, with an answer as the data have it."""
        return ProbeRow(
            pair_id=self.example.id,
            split=self.split,
            kind=kind,
            prompt=self.example.prompt,
            response=response,
            made_by=made_by,
            flags=flags,
            turn=self.example.turn,
        )

    def made(self, kind: str, text: str, made_by: str, *flags: str) -> ProbeRow:
        """A probe row of this pair, with a text that is not the data's, written as its chosen."""
        return self.row(kind, in_place_of(self.example.chosen, text, self.example), made_by, *flags)


class Missing(Row):
    """A probe row that could not be made, and why."""

    pair_id: str
    split: Split
    kind: str
    reason: str

    @classmethod
    def of(cls, watched: Watched, kind: str, reason: str) -> Missing:
        """Records that a kind of a watched pair is missing."""
        return cls(pair_id=watched.example.id, split=watched.split, kind=kind, reason=reason)


def watched_pairs(train: Sequence[Example], fresh: Sequence[Example], pairs: int) -> list[Watched]:
    """The first `pairs` training rows and the first `pairs` held-out rows."""
    return [
        *(Watched(example, "train") for example in train[:pairs]),
        *(Watched(example, "heldout") for example in fresh[:pairs]),
    ]


def build_probes(
    train: Sequence[Example], heldout: Sequence[Example], *, pairs: int, seed: int
) -> list[ProbeRow]:
    """Builds probe rows of the first `pairs` training and the first `pairs` held-out examples.

    Makes all kinds of `rows_from_data` that the examples allow, without held-out examples that
    occur in the training rows. See there for arguments.
    """
    fresh = disjoint(heldout, train)
    watched = watched_pairs(train, fresh, pairs)
    few = {"irr_train"} if len(train) < 2 else set()
    few |= {"irr_test", "random_nonhum"} if len(fresh) < 2 else set()
    kinds = [kind for kind in DATA_KINDS if kind not in few]
    return rows_from_data(watched, train, fresh, kinds=kinds, seed=seed)


def rows_from_data(
    watched: Sequence[Watched],
    train: Sequence[Example],
    fresh: Sequence[Example],
    *,
    kinds: Sequence[DataKind],
    seed: int,
) -> list[ProbeRow]:
    """Builds probe rows of some kinds, pair by pair (Ren & Sutherland, arXiv 2407.10490, §4).

    A row's random draw depends on its pair, its kind and the seed alone. A pair without a rejected
    answer gets no `rejected` row, and one without another prompt beside it no unrelated answer.

    **Arguments:**

    - `train`: all rows that training will see, not a subset.
    - `fresh`: rows whose prompt and answers do not occur in `train` (`disjoint`), so that an
      `irr_test` is sure to be irrelevant and untrained.

    **Raises:** `ConfigError` if there are fewer than two examples to draw a kind from.
    """
    for name, rows, drawn in (
        ("training rows", train, {"irr_train"}),
        ("held-out rows disjoint from training", fresh, {"irr_test", "random_nonhum"}),
    ):
        if len(rows) < 2 and drawn & set(kinds):
            raise ConfigError(
                name,
                len(rows),
                "irr_train and irr_test need at least two; give more rows, or hold out more "
                "(data.heldout_rows)",
            )
    text_of = _texts(train, fresh, seed)
    built = []
    for pair in watched:
        for kind in kinds:
            text = text_of(pair, kind)
            if text is not None:
                built.append(pair.row(kind, text, MADE_BY[kind]))
    return built


def other(examples: Sequence[Example], than: Example, rng: random.Random) -> Example | None:
    """A random example with another prompt and another chosen answer, which is not empty."""
    start = rng.randrange(len(examples))
    for step in range(len(examples)):
        row = examples[(start + step) % len(examples)]
        differs = bare(row.prompt) != bare(than.prompt) and bare(row.chosen) != bare(than.chosen)
        if differs and row.chosen.strip():
            return row
    return None


def shuffled(text: str, rng: random.Random) -> str:
    """The words of a text in a random order, different from the original if there is one."""
    words = text.split()
    order = words[:]
    if len(set(words)) > 1:
        while order == words:
            rng.shuffle(order)
    return " ".join(order)


def _texts(
    train: Sequence[Example], fresh: Sequence[Example], seed: int
) -> Callable[[Watched, DataKind], str | None]:
    """Makes the text of a pair's row of a kind; None where there is none."""

    def rng(watched: Watched, kind: str) -> random.Random:
        return random.Random(f"{seed}/probes/{watched.split}/{watched.example.id}/{kind}")

    def unrelated(watched: Watched, rows: Sequence[Example], kind: str) -> str | None:
        example = other(rows, watched.example, rng(watched, kind))
        return None if example is None else example.chosen

    def permuted(watched: Watched, answer: str | None, kind: str) -> str | None:
        if answer is None:
            return None
        row = watched.example
        return in_place_of(row.chosen, shuffled(row.content(answer), rng(watched, kind)), row)

    def text_of(watched: Watched, kind: DataKind) -> str | None:
        row = watched.example
        is_bad = row.label is False
        match kind:
            case "chosen":
                return None if is_bad else row.chosen
            case "rejected":
                return row.chosen if is_bad else row.rejected
            case "irr_train":
                return unrelated(watched, train, kind)
            case "irr_test":
                return unrelated(watched, fresh, kind)
            case "random_permute":
                return permuted(watched, row.chosen, kind)
            case "random_nonhum":
                return permuted(watched, unrelated(watched, fresh, "irr_test"), kind)

    return text_of


def read_built_probes(
    file: Path, train: Sequence[Example], heldout: Sequence[Example]
) -> list[ProbeRow]:
    """Reads the `probes.jsonl` of a run of the flow `probes`.

    **Raises:** `ConfigError` for an invalid line, an empty file, and a row whose pair is not in its
    split of these data: the row would count for the wrong split.
    """
    parts: dict[Split, dict[str, Example]] = {
        "train": {example.id: example for example in train},
        "heldout": {example.id: example for example in heldout},
    }
    rows = list(read_rows(file, ProbeRow))
    if not rows:
        raise ConfigError("data.probes", file.name, "has no rows; build the probe set first")
    for row in rows:
        pair = parts[row.split].get(row.pair_id)
        if pair is None or pair.prompt != row.prompt:
            raise ConfigError(
                "data.probes",
                f"{file.name}, {row.kind} of pair {row.pair_id}",
                f"these data have no such pair among their {row.split} rows; build the probe set "
                "with the same data settings and seed",
            )
    return rows
