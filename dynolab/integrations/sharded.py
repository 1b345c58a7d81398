"""Models whose weights FSDP2 or ZeRO-3 splits over ranks: each rank's shares, and calls of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from dynolab import distributed
from dynolab.data.batches import TokenBatch
from dynolab.errors import ConfigError
from dynolab.forces.function.calls import recorded_calls
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import Rule, find_rules
from dynolab.forces.function.weights import Weights, call_alone, gradients, shape_of
from dynolab.forces.ledger.grouped import GroupedGradients, Values, add_call, groups_of
from dynolab.forces.ledger.pass_again import rows_of, typed
from dynolab.forces.map.factors import differing


def is_whole(model: nn.Module) -> bool:
    """Whether every rank holds all weights."""
    return not isinstance(model, FSDPModule) and not any(
        hasattr(parameter, "ds_tensor") for parameter in model.parameters()
    )


def local(tensor: Shaped[Tensor, " ..."]) -> Shaped[Tensor, " ..."]:
    """This rank's part of a tensor that is split over ranks; of any other, the tensor itself."""
    if hasattr(tensor, "ds_tensor"):
        return tensor.ds_tensor.data[: Share.of(tensor).size]  # without padding
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True)
class Share:
    """This rank's stretch of a parameter as a flat vector, `total` numbers long.

    `split`: ranks hold different stretches. Some may be empty: FSDP2 splits by rows, so that one
    rank has all of a parameter of one row.
    """

    start: int
    size: int
    total: int
    split: bool

    @classmethod
    def of(cls, parameter: Any) -> Share:
        """The share of a parameter that is split by its rows, as a flat vector, or not at all.

        **Raises:** `ConfigError` where several ranks hold the same share.
        """
        start, split = 0, isinstance(parameter, DTensor)
        if hasattr(parameter, "ds_tensor"):  # ZeRO-3; the last share has padding at its end
            share_size, total = parameter.ds_tensor.numel(), int(parameter.ds_numel)
            # More than an even share, rounded up: several ranks hold the same numbers.
            if share_size > -(-total // distributed.world_size()):
                raise ConfigError(
                    "zero_optimization",
                    f"shares of {share_size} of {total} numbers",
                    "forces need weights that are split over all ranks; set no hpZ, no MiCS",
                )
            start = min(share_size * distributed.rank(), total)
            return cls(start, min(share_size, total - start), total, True)
        if split:
            mesh, placements = parameter.device_mesh, parameter.placements
            if placements != (Shard(0),) or mesh.size() != distributed.world_size():
                raise ConfigError(
                    "trainer.args.fsdp_config",
                    str(placements),
                    "forces need weights that are split over all ranks by their rows; train "
                    "without HSDP and tensor parallelism",
                )
            _, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
            # The offset is in rows.
            start = offset[0] * (parameter.numel() // parameter.shape[0])
        return cls(start, local(parameter).numel(), parameter.numel(), split)

    def gathered(
        self, vectors: Sequence[Float[Tensor, " size"]], columns: slice
    ) -> Float[Tensor, "vectors columns"]:
        """Some of all numbers, from the ranks' stretches; all ranks call it together."""
        if not self.split:
            return torch.stack([vector[columns] for vector in vectors])
        every = vectors[0].new_zeros(len(vectors), columns.stop - columns.start)
        for row, vector in zip(every, vectors, strict=True):
            here, inside = self.within(columns)
            row[here] = vector[inside]
        return distributed.add_up(every)

    def within(self, columns: slice) -> tuple[slice, slice]:
        """Those of some columns that are this rank's: counted among them, and in its stretch."""
        start = max(columns.start, self.start)
        count = max(0, min(columns.stop, self.start + self.size) - start)
        here, inside = start - columns.start, start - self.start
        return slice(here, here + count), slice(inside, inside + count)


@dataclass(frozen=True)
class ShardedGradients(GroupedGradients):
    """Gradients of a model that is split: of every group this rank's shares, one row a group.

    Every rank makes as many passes, of its own sequences, in the training's arithmetic; a module's
    weights are gathered where the model's own forward and backward gather them. A module's gradient
    is added up over the ranks some rows at a time, and a rank keeps its share. Parameters without a
    rule have no gradient here.
    """

    @classmethod
    def of(cls, policy: PolicyFunction, names: tuple[str, ...]) -> ShardedGradients:
        """Finds the parameters' rules, and tries each against autograd on its module alone."""
        rules = tuple(
            rule for rule in find_rules(policy, set(names)) if rule.names and _holds(rule)
        )
        covered = set(chain.from_iterable(rule.names for rule in rules))
        return cls(policy, names, rules, frozenset(set(names) - covered))

    @torch.no_grad()
    def add(
        self,
        at: Weights,
        batch: TokenBatch,
        values: Values,
        group: Int[Tensor, " sequences"],
        *,
        into: Float[Tensor, "groups parameters"],
    ) -> Float[Tensor, " tokens"]:
        """As of `GroupedGradients`; `at` are this rank's shares of the weights as they are.

        All ranks call it together, each with sequences of its own.
        """
        model: Any = self.policy.model
        parameters = dict(model.named_parameters())
        parts = dict(
            zip(self.names, into.split([at[name].numel() for name in self.names], 1), strict=True)
        )
        training = model.training
        try:
            with recorded_calls(self.rules, set()) as calls, torch.enable_grad():
                output = model.eval()(
                    input_ids=batch.input_ids,
                    attention_mask=batch.attention_mask,
                    use_cache=False,
                )
                logits = output.logits[batch.token_row, batch.position].to(into.dtype)
                token_values = values(logits)
                signals = torch.autograd.grad(
                    token_values.sum(), [call.output for call in calls], allow_unused=True
                )
        finally:
            model.train(training)
        made = []
        for call, signal in zip(calls, signals, strict=True):
            where = groups_of(call.output.shape[:-1], batch.input_ids.shape, group)
            if signal is not None and where is not None:
                made.append((call.rule, *typed(call, signal, into.dtype), where))
        # Rule by rule, as what is called may differ between ranks, such as experts.
        parameters_of_rules = [(rule, name) for rule in self.rules for name in rule.names]
        for wanted_rule, name in parameters_of_rules:
            share = Share.of(parameters[name])
            for places, columns in rows_of(parameters[name], into.device):
                part = {name: into.new_zeros(len(into), columns.stop - columns.start)}
                for called, value, delta, where in made:
                    if called is wanted_rule:
                        add_call(called, value, delta, where, part, places)
                here, inside = share.within(columns)
                parts[name][:, inside] += distributed.add_up(part[name])[:, here]
        return token_values.detach()


def _holds(rule: Rule) -> bool:
    """Whether a module's gradient is what its rule says, with weights and signals of its shapes."""
    module: Any = rule.module
    device, random = local(module.weight).device, torch.Generator().manual_seed(0)
    leaves = {
        name: torch.randn(shape_of(parameter), generator=random).to(device).requires_grad_()
        for name, parameter in module.named_parameters(recurse=False)
    }
    # A linear layer's or norm's input is that wide; an embedding's is ids below its first size.
    width, _ = rule.sizes
    value = torch.randn(1, 3, width, generator=random).to(device)
    if rule.kind == "embedding":
        value = torch.tensor([[0, 1, width - 1]], device=device)
    with torch.enable_grad(), torch.random.fork_rng():
        output = call_alone(module, leaves, value)
        signal = torch.randn(output.shape, generator=random).to(output)
        truth = gradients((output * signal).sum(), leaves)
    rows = {name: torch.zeros(1, leaf.numel(), device=device) for name, leaf in leaves.items()}
    where = torch.zeros(3, dtype=torch.long, device=device)
    # The rule with the module's own names, as the leaves have them.
    bias = "bias" if "bias" in leaves else None
    with torch.no_grad():
        add_call(
            replace(rule, weight="weight", bias=bias), value, signal.flatten(0, -2), where, rows
        )
    return not differing({name: row.view_as(leaves[name]) for name, row in rows.items()}, truth)


@contextmanager
def passes_of_ours(model: nn.Module) -> Iterator[None]:
    """While open, passes of ours may be made between two steps of a training.

    FSDP2 and ZeRO-3 keep a state from pass to pass, which is cleared at the end. Otherwise a group
    of which one module alone was called, a pass that failed, or weights that are still gathered
    would change the training's next pass.
    """
    try:
        yield
    finally:
        if isinstance(model, FSDPModule):
            model.reset_iter_state()
        parameter: Any
        for parameter in model.parameters():
            if getattr(getattr(parameter, "ds_status", None), "name", "") == "AVAILABLE":
                parameter.ds_active_sub_modules.clear()
                parameter.partition()


@contextmanager
def callable_in_parts(model: nn.Module) -> Iterator[None]:
    """While open, decoder and head of a model that FSDP2 splits can be called by themselves.

    FSDP2 sets itself up in the first forward of the whole model, and gathers in its forwards what
    belongs to no layer. Layers gather their own weights, as in training.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    training, device = model.training, next(model.parameters()).device
    with passes_of_ours(model):
        try:
            with torch.no_grad():
                # Any forward does; it sets FSDP2 up.
                model.eval()(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device))
        finally:
            model.train(training)
        model.unshard()
        yield


@contextmanager
def at_weights(parameters: Weights, flat: Float[Tensor, " parameters"]) -> Iterator[None]:
    """While open, a model's parameters are others; then they are their own again, to the bit.

    **Arguments:** `flat`: this rank's parts of them, one after the other, in fp32; it holds the
    model's own meanwhile.
    """
    local_parts = [local(parameter).detach() for parameter in parameters.values()]
    pairs = list(zip(local_parts, flat.split([part.numel() for part in local_parts]), strict=True))

    def exchange() -> None:
        for part, other in pairs:
            here = part.clone()
            part.copy_(other.view_as(part))
            other.copy_(here.flatten())

    exchange()
    try:
        yield
    finally:
        exchange()
