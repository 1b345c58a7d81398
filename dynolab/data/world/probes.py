"""Makes every probe kind of the built-in world, exactly by rule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from dynolab.data.probes.build import other, shuffled
from dynolab.data.rows import Example, ProbeRow, spaced
from dynolab.data.world import lexicon
from dynolab.data.world.answers import Answered
from dynolab.data.world.lexicon import (
    SLOTS,
    Fact,
    answer,
    plain_words,
    rephrased_words,
    short_words,
)

MADE_BY = {
    "chosen": "the data",
    "rejected": "the data",
    "chosen_initial": "a random value, in the form in which the base corpus answers questions",
    "chosen_gptsemantic": "the chosen fact in the other template, with other words in every slot",
    "reject_gptsemantic": "the rejected fact in the other template, with other words in every slot",
    "chosen_gptformat": "the chosen answer's form and style, stating a fact that no pair asks for",
    "reject_gptformat": "the rejected answer's form and style, with a wrong value of such a fact",
    "irr_train": "chosen answer of another training pair",
    "irr_test": "chosen answer of another held-out pair",
    "irr_hum": "a tale of the base corpus's grammar",
    "random_permute": "words of the chosen answer, shuffled",
    "random_nonhum": "words of irr_test, shuffled",
}
"""How each kind is made. `chosen_selfr` is absent: only a sampled model can rephrase itself."""


def build_world_probes(
    train: Sequence[Answered],
    heldout: Sequence[Answered],
    spare: Sequence[Fact],
    rng: random.Random,
) -> list[ProbeRow]:
    """Probe rows of all pairs, pair by pair, with kinds in the order of `MADE_BY`."""
    trained, untrained = ([pair.example for pair in part] for part in (train, heldout))
    rows = []
    for pair in (*train, *heldout):
        irr_test = _another(untrained, pair.example, rng)
        unasked = rng.choice(spare)
        texts = {
            "chosen": pair.example.chosen,
            "rejected": str(pair.example.rejected),
            "chosen_initial": " ".join([*short_words(_any_value(pair.fact, rng)), "."]),
            "chosen_gptsemantic": answer(
                rephrased_words(pair.fact), _other_style(pair.chosen_style, rng)
            ),
            "reject_gptsemantic": answer(
                rephrased_words(pair.wrong), _other_style(pair.rejected_style, rng)
            ),
            "chosen_gptformat": answer(plain_words(unasked), pair.chosen_style),
            "reject_gptformat": answer(
                plain_words(
                    lexicon.wrong_fact(unasked, rng) if pair.wrong != pair.fact else unasked
                ),
                pair.rejected_style,
            ),
            "irr_train": _another(trained, pair.example, rng),
            "irr_test": irr_test,
            "irr_hum": lexicon.tale(rng),
            "random_permute": shuffled(pair.example.chosen, rng),
            "random_nonhum": shuffled(irr_test, rng),
        }
        rows += [
            ProbeRow(
                pair_id=pair.example.id,
                split=pair.split,
                kind=kind,
                prompt=pair.example.prompt,
                response=spaced(text),
                made_by=MADE_BY[kind],
            )
            for kind, text in texts.items()
        ]
    return rows


def _another(examples: Sequence[Example], than: Example, rng: random.Random) -> str:
    found = other(examples, than, rng)
    assert found is not None  # a world asks two questions at least
    return found.chosen


def _any_value(fact: Fact, rng: random.Random) -> Fact:
    return replace(fact, value=rng.choice(lexicon.ATTRIBUTES[fact.attribute][: lexicon.HELD]))


def _other_style(style: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    return tuple(
        rng.choice([word for word in slot if word != used])
        for slot, used in zip(SLOTS, style, strict=True)
    )
