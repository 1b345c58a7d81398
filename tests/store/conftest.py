"""Where the tests of the store commit to."""

from __future__ import annotations

import pytest

from dynolab.store import Place, Store
from tests.store.results import KEY


@pytest.fixture
def place(store: Store) -> Place:
    return store.place("sft", KEY)
