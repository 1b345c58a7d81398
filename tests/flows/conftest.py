from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynolab.functions import ALLOWED


@pytest.fixture(scope="module", autouse=True)
def allowed() -> Iterator[None]:
    """Rewards of `tests/training/rewards.py` may be named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "tests.training.rewards")
        yield
