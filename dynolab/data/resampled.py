"""Preference pairs whose rejected answers are sampled once from a policy."""

from __future__ import annotations

from collections.abc import Sequence

from dynolab.data.rows import Example, in_place_of


def with_rejected(examples: Sequence[Example], responses: Sequence[str]) -> list[Example]:
    """Replaces the rejected answers of pairs, one response per example.

    With responses sampled from the policy itself, the negative gradient acts on a peak of the
    policy instead of a valley, where it would squeeze (Ren & Sutherland, arXiv 2407.10490, §3.3).
    On-policy training goes further: it samples both answers from the current policy at every step
    (`Online`). A response that equals the chosen answer is kept: its pair's two forces cancel.
    """
    return [
        example.model_copy(
            update={"rejected": in_place_of(example.chosen, response, example), "wins": None}
        )
        for example, response in zip(examples, responses, strict=True)
    ]
