"""Shapes that annotations name are checked while tests run."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from dynolab.data.batches import TopTokens, collate
from dynolab.data.encode import Encoded


def test_an_array_of_another_shape_is_refused() -> None:
    batch = collate([Encoded((1, 2, 3), 1)], pad_id=0)
    assert batch.sequence_sum(torch.ones(2)).tolist() == [2.0]
    with pytest.raises(TypeCheckError, match="sequence_sum"):
        batch.sequence_sum(torch.tensor(1.0))


def test_so_is_a_data_class_s_and_what_names_no_shape_is_not_wrapped() -> None:
    with pytest.raises(TypeCheckError, match="TopTokens"):
        TopTokens(torch.zeros(3, 2, dtype=torch.long), torch.zeros(2, 3), torch.zeros(3, 2))
    assert not hasattr(Encoded.__init__, "__wrapped__")
