"""The stage key moves with what decides a result and with nothing else."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from dynolab.errors import ConfigError
from tasks.runtime.keys import canonical, stage_key


class Launch(BaseModel):
    ranks: int = 2
    timeout: float = 10.0


class Loss(BaseModel):
    name: str = "dpo"


class Sigmoid(Loss):
    beta: float = 0.1


class Train(BaseModel):
    lr: float = 1e-4
    loss: Loss = Sigmoid()
    launch: Launch | None = Launch()
    kinds: frozenset[str] = frozenset({"chosen", "rejected", "irr_train", "irr_test"})
    folder: Path = Path("data/x")


OPERATIONAL = frozenset({"launch.timeout"})


def key(config: BaseModel | None = None, **other: Any) -> str:
    told = {"name": "train", "version": 1, "operational": OPERATIONAL, "inputs": {"data": "d"}}
    return stage_key(config=config or Train(), **(told | other))


def test_what_decides_the_result_is_in_the_key() -> None:
    keys = [
        key(),
        key(Train(lr=2e-4)),
        key(Train(loss=Sigmoid(beta=0.2))),  # declared as Loss, which has no beta
        key(Train(launch=Launch(ranks=1))),
        key(Train(launch=None)),
        key(Train(kinds=frozenset())),
        key(name="other"),
        key(version=2),
        key(inputs={"data": "e"}),
        key(inputs={"other": "d"}),
    ]
    assert len(set(keys)) == len(keys)


def test_what_does_not_is_not() -> None:
    assert key() == key(Train(launch=Launch(timeout=99.0)))
    assert key() == key(Train(lr=0.0001))
    assert key(Train(launch=None)) == key(Train(launch=None))


def test_an_operational_field_must_exist() -> None:
    with pytest.raises(ConfigError, match=r"'lunch.timeout': names no field; there are: .*launch"):
        key(operational=frozenset({"lunch.timeout"}))


def test_every_process_finds_the_same_key() -> None:
    program = "from test_keys import key; print(key())"
    for seed in ("1", "2"):  # of the order of sets
        found = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ
            | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stdout.strip() == key()


class Kind(enum.Enum):
    CHOSEN = "chosen"


def test_canonical_values() -> None:
    assert canonical({"b": (1, 2.5, None), "a": Kind.CHOSEN}) == {
        "b": [1, 2.5, None],
        "a": "chosen",
    }
    assert canonical(Path("a") / "b") == "a/b"


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), SecretStr("hush"), b"bytes", {1: 2}, object()]
)
def test_values_without_one_meaning_are_refused_by_name(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        canonical({"outer": {"inner": value}})
    assert caught.value.field.startswith("config.outer")
    assert "hush" not in str(caught.value)
