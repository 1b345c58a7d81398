"""The settings by which a step fits a machine that it is too large for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from pydantic import ValidationError

from dynolab.costs.machines import Machine
from dynolab.errors import ConfigError
from dynolab.training.config import LoopConfig
from flows.costs import Changes, PlannedCosts
from flows.flow import Step

LEFT_OUT = ("audit", "forces", "kernel", "ledger", "squeezing")
"""Analyses that a study can do without."""

SHORTEST, FEWEST = 64, 128
"""Tokens of the shortest rows, and of the smallest batch of an analysis, that are tried."""


def field_of(step: Step) -> str:
    """The name of a step's settings in a study file."""
    if step.stage.name == "arm":
        return "training"
    return step.stage.name if step.stage.name in LEFT_OUT else step.name


def remedy(step: Step, costs: PlannedCosts) -> str:
    """The settings by which a step fits, as plans of them say."""
    said = [
        "set " + " and ".join(f"{name}={str(value).lower()}" for name, value in way.items())
        for way in ways(step, costs)
    ]
    if field_of(step) in LEFT_OUT:
        said.append(f"set {field_of(step)}=null")
    said.append("choose a larger machine" + ("" if said else " or a smaller model"))
    return ", or ".join(said)


def ways(step: Step, costs: PlannedCosts) -> list[Changes]:
    """Settings of the file with which a step fits: of each kind the fewest, or the least change.

    Of a training: how it is laid out, which changes only the last bits of its result; shorter rows;
    adapters. Of an analysis: smaller batches; rows and adapters of the training that it reads.
    """
    if isinstance(step.config, LoopConfig):
        return _training_ways(step, costs)
    tried_ways = []
    tokens = getattr(step.config, "batch_tokens", None)
    if "batch_tokens" in type(step.config).model_fields:
        smaller = [{"batch_tokens": half} for half in _halves(tokens or 2**14, FEWEST)]
        tried_ways.append(_first(step, costs, step, smaller))
    trained = costs.step(step.inputs.get("trained", ""))
    if trained is not None and isinstance(trained.config, LoopConfig):
        tried_ways += [
            _first(step, costs, trained, changes)
            for changes in (_shorter(trained, costs), _adapters(trained.config))
        ]
    return [way for way in tried_ways if way]


def _training_ways(step: Step, costs: PlannedCosts) -> list[Changes]:
    config: LoopConfig = step.config  # type: ignore[assignment]
    engine, machine = config.engine, costs.machine
    ranks = _most_ranks(config, machine)
    fewer: Changes = {"engine.ranks": ranks} if ranks < engine.ranks else {}
    layouts = [fewer | layout for layout in _layouts(config, machine, ranks)]
    if fewer and (enough := _first(step, costs, step, [fewer])):
        return [enough]
    tried_ways = [_first(step, costs, step, layouts)]
    for changes in (_shorter(step, costs), _adapters(config)):
        tried = [fewer | change for change in changes]
        if layouts and not tried_ways[0]:
            tried += [layouts[-1] | change for change in changes]
        tried_ways.append(_first(step, costs, step, tried))
    return [way for way in tried_ways if way]


def _most_ranks(config: LoopConfig, machine: Machine) -> int:
    """As many ranks as there are GPUs for, that share the batch evenly; on CPUs one."""
    most = min(max(machine.devices, 1), config.batch_size)
    return next(ranks for ranks in range(most, 0, -1) if config.batch_size % ranks == 0)


def _layouts(config: LoopConfig, machine: Machine, ranks: int) -> list[Changes]:
    """Settings that save memory of a training, first each of them alone."""
    engine, savings = config.engine, list[Changes]()
    if config.micro_examples > 1:
        savings.append({"micro_batch_size": 1})
    if not engine.checkpoint_activations:
        savings.append({"engine.checkpoint_activations": True})
    if machine.gpus and ranks > 1 and (engine.zero_stage < 3 or ranks > engine.ranks):
        ranks_too: Changes = {"engine.ranks": ranks} if ranks > engine.ranks else {}
        savings.append({"engine.zero_stage": 3, **ranks_too})
    return [
        {name: value for saving in chosen for name, value in saving.items()}
        for count in range(1, len(savings) + 1)
        for chosen in combinations(savings, count)
    ]


def _shorter(step: Step, costs: PlannedCosts) -> list[Changes]:
    """Shorter rows of a training."""
    cut: Changes = {}
    if getattr(step.config, "overlong", "error") == "error":
        cut = {"overlong": "truncate_left"}
    return [{"max_length": half, **cut} for half in _halves(costs.longest_row(step), SHORTEST)]


def _adapters(config: LoopConfig) -> list[Changes]:
    narrow: Changes = {"engine.dtype": "bf16"}
    if config.lora is not None:
        return [narrow] if config.engine.dtype == "fp32" else []
    return [{"lora.rank": 8}, {"lora.rank": 8, **narrow}]


def _halves(tokens: int, least: int) -> list[int]:
    """Powers of two below a number, down to the least."""
    return [2**power for power in range(20, 5, -1) if least <= 2**power < tokens]


def _first(step: Step, costs: PlannedCosts, of: Step, tried: Sequence[Changes]) -> Changes:
    """The first of some changes of a step's settings with which `step` fits, by their names in the
    file; empty if none is enough."""
    enough = next((changes for changes in tried if _fits(step, costs, of, changes)), Changes())
    return {f"{field_of(of)}.{name}": value for name, value in enough.items()}


def _fits(step: Step, costs: PlannedCosts, of: Step, changes: Changes) -> bool:
    try:
        changed = costs.changed(of, changes)
        changed_step = changed.step(step.name)
        cost = None if changed_step is None else changed.of(changed_step)
    except (ConfigError, ValidationError):  # not all settings go together
        return False
    return cost is not None and cost.lacks(costs.machine) is None
