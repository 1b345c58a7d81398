"""Nothing that lies in a store can run code: no part of the house reads or writes a pickle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOUSE = sorted(
    path for room in ("dynolab", "models", "tasks", "flows") for path in (ROOT / room).rglob("*.py")
)
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
BETWEEN_RANKS = "dynolab/distributed.py"  # reads only what a rank of the same job has sealed
LOADERS = {("torch", "load"), ("torch", "save"), ("torch", "jit"), ("pandas", "read_pickle")}
DANGEROUS_NAMES = {"eval", "exec", "load_checkpoint", "unsafe_load"}


def found(tree: ast.Module) -> list[str]:
    """What could make code out of data."""
    bad = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bad += [name.name for name in node.names if name.name.split(".")[0] in PICKLES]
        elif isinstance(node, ast.ImportFrom):
            bad += [node.module for _ in [0] if (node.module or "").split(".")[0] in PICKLES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            bad += [node.attr for _ in [0] if (node.value.id, node.attr) in LOADERS]
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                bad.append(node.arg)
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            method = isinstance(called, ast.Attribute) and name in ("eval", "exec")  # model.eval()
            bad += [name for _ in [0] if name in DANGEROUS_NAMES and not method]
    return [str(one) for one in bad]


def test_no_module_makes_code_of_data() -> None:
    bad = {str(path.relative_to(ROOT)): found(ast.parse(path.read_text())) for path in HOUSE}
    assert bad.pop(BETWEEN_RANKS) == ["pickle"]
    assert len(bad) > 100
    assert {path: names for path, names in bad.items() if names} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from cloudpickle import load",
        "torch.load(f)",
        "eval(x)",
        "np.load(f, allow_pickle=True)",
        "engine.load_checkpoint(f)",
        "yaml.unsafe_load(f)",
    ],
)
def test_what_would_is_found(text: str) -> None:
    assert found(ast.parse(text))


def test_what_would_not_is_left_alone() -> None:
    assert not found(ast.parse("model.eval(); np.load(f, allow_pickle=False); json.loads(t)"))
