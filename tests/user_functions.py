"""Modules with a user's loss and reward, and the changes of them that a stage's key must follow."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynolab.functions import ALLOWED
from dynolab.objectives import CustomConfig
from dynolab.rollouts.rewards import RewardConfig
from dynolab.training.config import GroupTrainConfig, TrainConfig
from tasks.runtime.keys import stage_key

MODULE, PACKAGE = "losses_of_a_user", "package_of_a_user"
FILES = {
    f"{MODULE}.py": (
        "import torch.nn.functional as F\n"
        "from helpers_of_a_user import SIGN\n\n\n"
        "def loss(chosen, rejected, beta=0.1):\n"
        "    return -SIGN * F.logsigmoid(beta * (chosen.ratio - rejected.ratio))\n\n\n"
        "def reward(prompt, completions, row):\n"
        "    from package_of_a_user.deep import scale\n\n"
        "    return [scale(len(text)) for text in completions]\n"
    ),
    "helpers_of_a_user.py": "SIGN = 1\n",
    f"{PACKAGE}/__init__.py": "FACTOR = 1.0\n",
    f"{PACKAGE}/deep.py": (
        "from . import FACTOR, shift\n\n\n"
        "def scale(length):\n    return FACTOR * shift.by(length)\n"
    ),
    f"{PACKAGE}/shift.py": "def by(length):\n    return length + 1.0\n",
    "unrelated_to_both.py": "SIGN = 1\n",
}


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """The modules lie in a folder from which they are imported anew, and settings may name them."""
    before = os.environ.get(ALLOWED), sys.path[:], sys.dont_write_bytecode
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    os.environ[ALLOWED] = MODULE
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True  # its time stamps are whole seconds
    forget()
    try:
        yield
    finally:
        forget()
        sys.path[:], sys.dont_write_bytecode = before[1:]
        os.environ.pop(ALLOWED)
        if before[0] is not None:
            os.environ[ALLOWED] = before[0]


def forget() -> None:
    """What the next process would do: import the modules as they are now."""
    for name in [name for name in sys.modules if "_of_a_user" in name]:
        del sys.modules[name]
    importlib.invalidate_caches()


def training() -> TrainConfig:
    return TrainConfig(objective=CustomConfig(loss=f"{MODULE}.loss"))


def key() -> str:
    """The key of a training with the loss, and of one with the reward."""
    forget()
    on_groups = GroupTrainConfig(rewards=(RewardConfig(name=f"{MODULE}.reward"),))
    keys = [stage_key("stage", 1, config, (), {}) for config in (training(), on_groups)]
    return " ".join(keys)


def own_code_changes_noticed(folder: Path) -> float:
    """The share of changed files that give another key, which an unrelated file must not."""
    with importable(folder):
        noticed = []
        for name, text in FILES.items():
            before = key()
            (folder / name).write_text(f"{text}# changed\n")
            noticed.append((key() != before) == (name != "unrelated_to_both.py"))
    return sum(noticed) / len(noticed)
