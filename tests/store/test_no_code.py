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
LOADERS = {("torch", "load"), ("torch", "save"), ("torch", "jit"), ("pandas", "read_pickle")}
DANGEROUS_NAMES = {"eval", "exec", "load_checkpoint", "unsafe_load"}


def names_in(node: ast.AST) -> list[str]:
    """What this node alone names that could make code out of data."""
    match node:
        case ast.Import(names=names):
            return [name.name for name in names if name.name.split(".")[0] in PICKLES]
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PICKLES:
            return [module]
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in LOADERS:
            return [name]
        case ast.keyword(arg="allow_pickle" | "trust_remote_code", value=ast.Constant(value=False)):
            return []
        case ast.keyword(arg="allow_pickle" | "trust_remote_code" as name):
            return [name]
        case ast.Call(func=ast.Attribute(attr="eval" | "exec")):  # model.eval()
            return []
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in DANGEROUS_NAMES:
            return [name]
    return []


def dangers(tree: ast.Module) -> list[str]:
    return [name for node in ast.walk(tree) for name in names_in(node)]


def test_no_module_makes_code_of_data() -> None:
    bad = {str(path.relative_to(ROOT)): dangers(ast.parse(path.read_text())) for path in HOUSE}
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
    assert dangers(ast.parse(text))


def test_what_would_not_is_left_alone() -> None:
    assert not dangers(ast.parse("model.eval(); np.load(f, allow_pickle=False); json.loads(t)"))
