"""What texts alone say of a pair's chosen answer: whose answers it shares its tokens with."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.sparse import csr_array

from dynolab.data.encode import Encoded, EncodedExample


def word_overlap(pairs: Sequence[EncodedExample], training_pairs: int) -> Float[ndarray, " pairs"]:
    """How much more a chosen answer resembles what is pushed down than what is pulled up.

    With J(a, b) = |a ∩ b| / |a ∪ b| over the sets of their tokens, and the mean over the other
    training pairs j:

        overlap_i = mean_j [J(y⁺_i, y⁻_j) − J(y⁺_i, y⁺_j)]

    It is the force of the other pairs with equal weights and J in place of the kernel.

    **Arguments:**

    - `pairs`: training pairs first, each with a rejected answer.
    - `training_pairs`: how many of them are trained on.
    """
    vocabulary = 1 + max(max(answer.ids) for pair in pairs for answer in _answers(pair))
    chosen = _tokens_of([pair.chosen for pair in pairs], vocabulary)
    pushes = _tokens_of([_answers(pair)[1] for pair in pairs[:training_pairs]], vocabulary)
    pull = _jaccard(chosen, chosen[:training_pairs])
    push = _jaccard(chosen, pushes)
    difference = push - pull
    others = np.full(len(pairs), training_pairs)
    diagonal = np.arange(training_pairs)
    difference[diagonal, diagonal] = 0  # the pair itself is none of the others
    others[:training_pairs] -= 1
    return difference.sum(1) / np.maximum(others, 1)


def shared_words(left: Set[str], right: Set[str]) -> float:
    """`|a ∩ b| / |a ∪ b|` of two answers' words."""
    return len(left & right) / max(1, len(left | right))


def _answers(pair: EncodedExample) -> tuple[Encoded, Encoded]:
    assert pair.rejected is not None
    return pair.chosen, pair.rejected


def _tokens_of(answers: Sequence[Encoded], vocabulary: int) -> csr_array:
    """Answers × vocabulary: 1 where an answer has a token."""
    token_sets = [sorted(set(answer.ids[answer.prompt_length :])) for answer in answers]
    columns = np.concatenate([np.array(tokens, dtype=int) for tokens in token_sets])
    ends = np.cumsum([0, *(len(tokens) for tokens in token_sets)])
    return csr_array((np.ones(len(columns)), columns, ends), shape=(len(answers), vocabulary))


def _jaccard(left: csr_array, right: csr_array) -> Float[ndarray, "left right"]:
    shared = (left @ right.T).toarray()
    sizes = left.sum(1)[:, None] + right.sum(1)[None]
    return shared / np.maximum(sizes - shared, 1)
