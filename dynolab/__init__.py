"""Dynolab measures the forces that training exerts on what a model says.

`__all__` is the public face; each name is loaded when it is first used:

- rows and tokens: `load_data`, `build_world`, `read_rows`, `Example`, `ProbeRow`, `build_probes`,
  `Encoder`;
- what a study has left: `Result`;
- objectives: `build_objective` and its configs, as `DPOConfig`;
- what the force engine moves: `PolicyFunction`, a language model as a function of its weights;
- a recorded training step: `StepRecord`, `RecordCache`; what a step did: `step_forces`, `one_step`,
  `token_forces`, `step_layers`; how far first order carries: `step_validity`, `second_order`;
- which token pushes which: `force_map` of a model, its tokenizer and texts; below it `ForceMap`,
  `recorded_examples`, `pair_totals`, `breakdown`;
- the kernel, the terms of the force, hidden layers: `kernel_…`, `…_terms`, `feature_…`;
- forces in other trainers: `ForceCallback`;
- answers that are watched: `ProbeCallback`, `score_probes`, `learning_paths`, `AlarmConfig`;
- pairs before training, and policies compared: `audit_pairs`, `contests`, `win_rate`;
- errors: `DynolabError`, and `ConfigError` for a setting that cannot work.

Models and tokenizers are those of transformers. Every other name is private and may change in any
release.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_SETTINGS = "dynolab.objectives.registry"
"""The module whose `__all__` names the settings of every objective."""


def _modules() -> dict[str, str]:
    """The module of every public name, but for the settings: the imports of `__init__.pyi`."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    modules = {}
    for statement in stub.body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                modules[alias.name] = str(statement.module)
    del modules["*"]
    return modules


_MODULES = _modules()


def __getattr__(name: str) -> Any:
    """A public name, loaded from its module."""
    if name == "__all__":
        value = ["__version__", *_MODULES, *import_module(_SETTINGS).__all__]
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    elif name.endswith("Config") and name in import_module(_SETTINGS).__all__:
        value = getattr(import_module(_SETTINGS), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
