"""A small policy in float64, for tests that leave it as it is."""

from __future__ import annotations

import pytest
import torch

from dynolab.forces import PolicyFunction
from tests.forces.small_models import neox


@pytest.fixture(scope="module")
def policy() -> PolicyFunction:
    return PolicyFunction(neox(), torch.float64)
