"""The stage key moves with what decides a result and with nothing else."""

from __future__ import annotations

import enum
import hashlib
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

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
    parts = {"name": "train", "version": 1, "operational": OPERATIONAL, "inputs": {"data": "d"}}
    return stage_key(config=config or Train(), **(parts | other))


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


def test_a_key_is_the_hash_of_its_sorted_document() -> None:
    """Whatever moves it throws away every result that is stored."""
    document = (
        '{"config":{"folder":"data/x","kinds":["chosen","irr_test","irr_train","rejected"],'
        '"launch":{"ranks":2},"loss":{"beta":0.1,"name":"dpo"},"lr":0.0001},'
        '"inputs":{"data":"d"},"stage":"train","version":1}'
    )
    assert key() == hashlib.sha256(document.encode()).hexdigest()
    document = (
        '{"config":{"ranks":2,"timeout":10.0},"inputs":{"a":"1","b":"2"},'
        '"stage":"train","version":1}'
    )
    for inputs in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}):
        made = key(Launch(), operational=frozenset(), inputs=inputs)
        assert made == hashlib.sha256(document.encode()).hexdigest()


@pytest.mark.parametrize("dotted", ["lunch", "lunch.timeout", "ranks"])
def test_an_unknown_operational_field_is_refused_with_those_that_there_are(dotted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        key(operational=frozenset({dotted}))
    assert str(caught.value) == (
        f"operational = {dotted!r}: is not a field; choose from: folder, kinds, launch, loss, lr"
    )


def test_every_process_finds_the_same_key() -> None:
    program = "from test_keys import key; print(key())"
    for seed in ("1", "2"):  # of the order of sets
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ
            | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ended.stdout.strip() == key()


class Kind(enum.Enum):
    CHOSEN = "chosen"


class Open(BaseModel, extra="allow"):
    """Takes fields that it does not declare, and leaves a rate of one out."""

    rate: float = Field(1.0, exclude_if=lambda rate: rate == 1.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": (1, 2.5, None), "a": Kind.CHOSEN}, {"b": [1, 2.5, None], "a": "chosen"}),
        (Path("a") / "b", "a/b"),
        (date(2024, 5, 17), "2024-05-17"),
        ([True, 0, "x", None], [True, 0, "x", None]),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({10, 9}), [10, 9]),
        (Open(), {}),  # what it leaves out does not count, what it took in does
        (Open(zeal=1, more=1, rate=2.0), {"more": 1, "rate": 2.0, "zeal": 1}),
    ],
)
def test_canonical_values(value: object, expected: object) -> None:
    made = canonical(value)
    assert made == expected
    if isinstance(made, dict):
        assert list(made) == sorted(made)


def test_operational_fields_are_dropped_at_any_depth_where_they_are() -> None:
    class Outer(BaseModel):
        train: Train = Train()

    whole, faster = Outer(), Outer(train=Train(launch=Launch(timeout=1.0), lr=1e-4))
    dropped = frozenset({"train.launch.timeout"})
    assert key(whole, operational=dropped) == key(faster, operational=dropped)
    assert key(whole, operational=frozenset()) != key(faster, operational=frozenset())
    kept = Outer(train=Train(launch=Launch(ranks=3)))
    assert key(whole, operational=dropped) != key(kept, operational=dropped)
    absent = Outer(train=Train(launch=None))
    assert key(absent, operational=dropped) == key(absent, operational=frozenset())
    part = frozenset({"launch"})
    assert key(operational=part) == key(Train(launch=None), operational=part) != key()
    for dotted in ("lr.rate", "launch.ranks.count", "launch.more", "launch.more.yet"):
        assert key(operational=frozenset({dotted})) == key(operational=frozenset())


class Weight(enum.Enum):
    UNKNOWN = float("nan")


FINITE, NO_PART = "give a finite number (null for no value)", "cannot be part of a stage's key"


@pytest.mark.parametrize(
    ("value", "field", "remedy"),
    [
        ({"outer": {"inner": [0, float("nan")]}}, "config.outer.inner.1", FINITE),
        ([{"b": [1.0, float("inf")]}], "config.0.b.1", FINITE),
        ({"a": Launch(timeout=float("nan"))}, "config.a.timeout", FINITE),
        ({"a": {float("nan")}}, "config.a", FINITE),
        ({"a": Weight.UNKNOWN}, "config.a", FINITE),
        ([b"x"], "config.0", f"a bytes {NO_PART}"),
        ({1: 2}, "config", f"a dict {NO_PART}"),
        ({"a": object()}, "config.a", f"a object {NO_PART}"),
        ({"a": [SecretStr("hush")]}, "config.a.0", NO_PART),
    ],
)
def test_a_refused_value_is_named_by_its_whole_path_and_no_secret_is_shown(
    value: object, field: str, remedy: str
) -> None:
    for name in ("config", "extra"):
        with pytest.raises(ConfigError) as caught:
            canonical(value, name)
        assert caught.value.field == field.replace("config", name, 1)
        assert remedy in caught.value.remedy and "hush" not in str(caught.value)
