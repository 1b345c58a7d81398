from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynolab.functions import ALLOWED


@pytest.fixture(scope="module", autouse=True)
def allowed() -> Iterator[None]:
    """Rewards and losses of the tests may be named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "tests.training.rewards,tests.objectives.losses")
        yield
