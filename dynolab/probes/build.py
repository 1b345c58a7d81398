"""Probe rows from any preference data: the kinds that need no language model to make."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dynolab.data.rows import Example, ProbeRow, Split, spaced
from dynolab.errors import ConfigError

MADE_BY = {
    "chosen": "the data",
    "rejected": "the data",
    "irr_train": "chosen answer of another training prompt",
    "irr_test": "chosen answer of a prompt outside the training rows",
    "random_permute": "words of the chosen answer, shuffled",
    "random_nonhum": "words of irr_test, shuffled",
}


def build_probes(
    train: Sequence[Example], heldout: Sequence[Example], *, pairs: int, seed: int
) -> list[ProbeRow]:
    """Probe rows of the first `pairs` training and the first `pairs` held-out examples.

    `irr_test` is drawn from those held-out examples whose prompt and whose answer stand nowhere
    among *all* training rows, so it is irrelevant and untrained for certain. Kinds as in Ren &
    Sutherland, arXiv 2407.10490, §4; rephrases need a judge-class model and are left out.

    **Arguments:**

    - `train`: every row that training will see, not a part of them.
    - `heldout`: rows that it will not see.

    **Raises:** `ConfigError` where fewer than two examples of a kind are left to draw from.
    """
    fresh = disjoint(heldout, train)
    for name, rows in (("training rows", train), ("held-out rows disjoint from training", fresh)):
        if len(rows) < 2:
            raise ConfigError(
                name, len(rows), "irr_train and irr_test need at least two; give more data"
            )
    rng = random.Random(f"{seed}/probes")
    parts: list[tuple[Split, Sequence[Example]]] = [
        ("train", train[:pairs]),
        ("heldout", fresh[:pairs]),
    ]
    return [
        row
        for split, examples in parts
        for example in examples
        for row in _rows_of(example, split, train, fresh, rng)
    ]


def disjoint(heldout: Sequence[Example], train: Sequence[Example]) -> list[Example]:
    """Held-out examples none of whose prompt, chosen or rejected text stands in training rows."""
    prompts = {_bare(row.prompt) for row in train}
    answers = {_bare(text) for row in train for text in (row.chosen, row.rejected) if text}
    return [
        row
        for row in heldout
        if _bare(row.prompt) not in prompts
        and _bare(row.chosen) not in answers
        and (row.rejected is None or _bare(row.rejected) not in answers)
    ]


def other(examples: Sequence[Example], than: Example, rng: random.Random) -> Example:
    """A random example with another prompt and another chosen answer than the given one."""
    start = rng.randrange(len(examples))
    for step in range(len(examples)):
        one = examples[(start + step) % len(examples)]
        if one.prompt != than.prompt and one.chosen != than.chosen:
            return one
    raise ConfigError(
        "data", than.id, "every row has this row's prompt or answer; give rows that differ"
    )


def shuffled(text: str, rng: random.Random) -> str:
    """The words of a text in random order, another than their own where that exists."""
    words = text.split()
    order = words[:]
    if len(set(words)) > 1:
        while order == words:
            rng.shuffle(order)
    return spaced(" ".join(order))


def _rows_of(
    example: Example, split: Split, train: Sequence[Example], fresh: Sequence[Example],
    rng: random.Random,
) -> list[ProbeRow]:  # fmt: skip
    irr_test = other(fresh, example, rng).chosen
    texts = {
        "chosen": example.chosen,
        "rejected": example.rejected,
        "irr_train": other(train, example, rng).chosen,
        "irr_test": irr_test,
        "random_permute": shuffled(example.chosen, rng),
        "random_nonhum": shuffled(irr_test, rng),
    }
    return [
        ProbeRow(
            pair_id=example.id, split=split, kind=kind, prompt=example.prompt,
            response=spaced(text) if text.strip() else "", made_by=MADE_BY[kind],
            flags=() if text.strip() else ("empty",),
        )
        for kind, text in texts.items()
        if text is not None
    ]  # fmt: skip


def _bare(text: str) -> str:
    return " ".join(text.split())
