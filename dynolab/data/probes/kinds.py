"""The kinds of watched answers, and who can make each."""

from __future__ import annotations

from typing import Literal, get_args

DataKind = Literal["chosen", "rejected", "irr_train", "irr_test", "random_permute", "random_nonhum"]
PolicyKind = Literal["chosen_initial", "chosen_selfr"]
WriterKind = Literal[
    "chosen_gptsemantic", "reject_gptsemantic", "chosen_gptformat", "reject_gptformat", "irr_hum"
]
Kind = Literal[DataKind, PolicyKind, WriterKind]

DATA_KINDS: tuple[DataKind, ...] = get_args(DataKind)
"""Made from the pairs alone."""

POLICY_KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
"""Sampled from the untrained policy."""

WRITER_KINDS: tuple[WriterKind, ...] = get_args(WriterKind)
"""Written by a judge-class model."""

KINDS: tuple[Kind, ...] = (*DATA_KINDS, *POLICY_KINDS, *WRITER_KINDS)
"""All kinds of Ren & Sutherland, arXiv 2407.10490, §4, but y*, the argmax, which needs no text."""

ORIGINAL: dict[str, Literal["chosen", "rejected"]] = {
    "chosen_selfr": "chosen",
    "chosen_gptsemantic": "chosen",
    "chosen_gptformat": "chosen",
    "random_permute": "chosen",
    "reject_gptsemantic": "rejected",
    "reject_gptformat": "rejected",
}
"""The answer of the pair that a kind is made from, if any."""

OF_REJECTED = frozenset(
    {"rejected"} | {kind for kind, side in ORIGINAL.items() if side != "chosen"}
)
"""Kinds that need a rejected answer."""
