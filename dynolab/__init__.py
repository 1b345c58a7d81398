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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynolab.audit.audit import audit_pairs as audit_pairs
    from dynolab.data.encode import Encoded as Encoded, Encoder as Encoder
    from dynolab.data.probes.build import build_probes as build_probes
    from dynolab.data.rows import (
        Example as Example,
        ProbeRow as ProbeRow,
        read_rows as read_rows,
        write_rows as write_rows,
    )
    from dynolab.data.sources.load import DataConfig as DataConfig, load_data as load_data
    from dynolab.data.world.world import WorldConfig as WorldConfig, build_world as build_world
    from dynolab.errors import ConfigError as ConfigError, DynolabError as DynolabError
    from dynolab.forces import (
        ForceMap as ForceMap,
        PolicyFunction as PolicyFunction,
        View as View,
        breakdown as breakdown,
        feature_forces as feature_forces,
        feature_step as feature_step,
        kernel_blocks as kernel_blocks,
        kernel_sizes as kernel_sizes,
        kernel_stability as kernel_stability,
        one_step as one_step,
        response_terms as response_terms,
        second_order as second_order,
        split_step as split_step,
        step_forces as step_forces,
        step_layers as step_layers,
        step_terms as step_terms,
        step_validity as step_validity,
        token_forces as token_forces,
    )
    from dynolab.forces.map.analysis import recorded_examples as recorded_examples
    from dynolab.forces.map.breakdown import pair_totals as pair_totals
    from dynolab.integrations.callback import ProbeCallback as ProbeCallback
    from dynolab.integrations.dose import DesignedDose as DesignedDose
    from dynolab.integrations.forces import ForceCallback as ForceCallback
    from dynolab.judges import (
        ExactJudge as ExactJudge,
        agreement as agreement,
        contests as contests,
        win_rate as win_rate,
    )
    from dynolab.likelihood.token_logps import ResponseLogits as ResponseLogits
    from dynolab.notebook.forces import TextForces as TextForces, force_map as force_map
    from dynolab.notebook.result import Result as Result
    from dynolab.objectives import (
        Answers as Answers,
        Objective as Objective,
        build_objective as build_objective,
    )
    from dynolab.objectives.registry import *  # noqa: F403
    from dynolab.probes.paths import learning_paths as learning_paths
    from dynolab.probes.score import score_probes as score_probes
    from dynolab.results.judges import PolicyAnswer as PolicyAnswer
    from dynolab.results.study import ProbeScore as ProbeScore
    from dynolab.training.alarm import AlarmConfig as AlarmConfig
    from dynolab.training.step_record import RecordCache as RecordCache, StepRecord as StepRecord

__version__ = "0.1.0"

_MODULES = {
    "audit.audit": ("audit_pairs",),
    "data.encode": ("Encoded", "Encoder"),
    "data.probes.build": ("build_probes",),
    "data.rows": ("Example", "ProbeRow", "read_rows", "write_rows"),
    "data.sources.load": ("DataConfig", "load_data"),
    "data.world.world": ("WorldConfig", "build_world"),
    "errors": ("ConfigError", "DynolabError"),
    "forces": (
        "ForceMap",
        "PolicyFunction",
        "View",
        "breakdown",
        "feature_forces",
        "feature_step",
        "kernel_blocks",
        "kernel_sizes",
        "kernel_stability",
        "one_step",
        "response_terms",
        "second_order",
        "split_step",
        "step_forces",
        "step_layers",
        "step_terms",
        "step_validity",
        "token_forces",
    ),
    "forces.map.analysis": ("recorded_examples",),
    "forces.map.breakdown": ("pair_totals",),
    "integrations.callback": ("ProbeCallback",),
    "integrations.dose": ("DesignedDose",),
    "integrations.forces": ("ForceCallback",),
    "judges": ("ExactJudge", "agreement", "contests", "win_rate"),
    "likelihood.token_logps": ("ResponseLogits",),
    "notebook.forces": ("TextForces", "force_map"),
    "notebook.result": ("Result",),
    "objectives": ("Answers", "Objective", "build_objective"),
    "probes.paths": ("learning_paths",),
    "probes.score": ("score_probes",),
    "results.judges": ("PolicyAnswer",),
    "results.study": ("ProbeScore",),
    "training.alarm": ("AlarmConfig",),
    "training.step_record": ("RecordCache", "StepRecord"),
}
"""The public names of every module, but for the settings of objectives."""

_SETTINGS = f"{__name__}.objectives.registry"
"""The module whose `__all__` names the settings of every objective."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take every name for one that is there

    def __getattr__(name: str) -> Any:
        """A public name, loaded from its module."""
        if name == "__all__":
            value = ["__version__", *_HOMES, *import_module(_SETTINGS).__all__]
        elif name in _HOMES:
            value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        elif name.endswith("Config") and name in import_module(_SETTINGS).__all__:
            value = getattr(import_module(_SETTINGS), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
