"""The token force map of many updating responses on many observed ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynolab import distributed
from dynolab.data.encode import Encoded
from dynolab.errors import ConfigError, DynolabError
from dynolab.forces.function.checks import check_arithmetic, check_items
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import subspace
from dynolab.forces.function.weights import Weights
from dynolab.forces.ledger.measures import Measure
from dynolab.forces.map.costs import memory_for
from dynolab.forces.map.files import Bounds, MapFolder
from dynolab.forces.map.gram import Blocks, Tile, TokenGradients, gram_tiles, plan_tiles
from dynolab.forces.map.weighted import Updating, WeightedResponse, labelled, weighted_responses
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.objectives import Objective
from dynolab.training.step_record import Recorded

SAMPLE_TOKENS = 4
"""Response tokens on which the parameters' rules are checked: each has its own random weight."""

MEASURED_UNITS = "what is measured at an observed token, per step, through one updating token"


@dataclass(frozen=True)
class MapFacts:
    """How a force map was computed.

    `subspace` names the parameters that move, unless all do.
    """

    dtype: str
    attention: str
    objective: str
    learning_rate: float | None
    preconditioned: bool
    subspace: str | list[str]
    units: str = "nats of log π(observed token) per step, through one updating token, first order"


@dataclass(frozen=True)
class ForceMap:
    """`force[m, l]`: push on log π of observed token m from updating token l.

    Rows are the tokens of the observed responses one after the other, columns those of the updating
    ones; block (o, u) is `force[observed_offsets[o]:observed_offsets[o+1], …]`. A map on
    disk is memory-mapped. `parts`: of a map made `by_block`, its parts by block of parameters.
    """

    force: np.ndarray
    observed: tuple[tuple[int, ...], ...]
    updating: tuple[Updating, ...]
    facts: MapFacts
    parts: Mapping[str, np.ndarray] | None = None

    @property
    def observed_offsets(self) -> list[int]:
        """First row of each observed response, and the end."""
        return _offsets([len(tokens) for tokens in self.observed])

    @property
    def updating_offsets(self) -> list[int]:
        """First column of each updating response, and the end."""
        return _offsets([len(response.tokens) for response in self.updating])

    def block(self, observed: int, updating: int) -> np.ndarray:
        """The M × L map of one updating response on one observed response."""
        rows, columns = self.observed_offsets, self.updating_offsets
        return self.force[
            rows[observed] : rows[observed + 1], columns[updating] : columns[updating + 1]
        ]

    @classmethod
    def open(cls, folder: Path) -> ForceMap:
        """A complete map from disk.

        **Raises:** `CorruptData` if the map is incomplete, `ConfigError` if there is none.
        """
        opened = MapFolder.open(folder)
        manifest = opened.manifest
        return cls(
            opened.matrix,
            tuple(tuple(tokens) for tokens in manifest["observed"]),
            tuple(
                Updating(response["id"], response["side"], tuple(response["tokens"]))
                for response in manifest["updating"]
            ),
            MapFacts(**manifest["facts"]),
            opened.parts
            if opened.parts is None
            else dict(zip(manifest["blocks"], opened.parts, strict=True)),
        )


def force_map(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Recorded],
    objective: Objective,
    *,
    update: float | FrozenUpdate = 1.0,
    at: Weights | None = None,
    memory_bytes: int | None = None,
    folder: Path | None = None,
    over_ranks: bool = False,
    parameters: Collection[str] | None = None,
    by_block: bool = False,
    measures: Sequence[Measure] | None = None,
) -> ForceMap:
    """`F[m,l] = −η (e_{y_m} − π_m)ᵀ K_{m,l} G_l` of every token pair, exact to rounding.

    K = J_o P J_uᵀ is the empirical tangent kernel of the logits (Ren & Sutherland, arXiv
    2407.10490, prop. 1), `G_l = Σ_j c_{l,j} (π_T − e_{t_{l,j}})/T` the objective's force: for one
    that reads the response's own tokens at T = 1, c_l (π_l − e_{y_l}). With
    `s_l = Σ_j c_{l,j} log π_T(t_{l,j})`, c held, this is `η ⟨∇ log π_m, P ∇ s_l⟩`: per-token
    gradients of both sides as factors, contracted layer by layer.

    The examples in `updating` are one step's batch: the objective's denominators count them all,
    so `Σ_l F` over all columns is the first-order change under the step.

    **Arguments:**

    - `updating`: with reference log-probabilities where the objective needs them.
    - `update`: learning rate η of a gradient step (P = I), or the frozen linear map of a realised
      step (`split_step(...).update`), whose scale is ηP, clip factor included.
    - `at`: where both sides' derivatives are taken; the model's own weights by default.
    - `memory_bytes`: bound on factors and workspace, beside the model itself; default:
      half of what is free (`memory_for`).
    - `folder`: keeps the map on disk. An interrupted map there is continued, by any number of
      ranks.
    - `over_ranks`: splits the observed responses over torch.distributed's ranks, in runs of
      about equal numbers of tokens. Every rank calls it with the same arguments and gets the whole
      map, equal to one process's up to rounding (matrix products of other sizes round otherwise).
    - `parameters`: those that move, of the trained ones; default: all. The map is then exactly the
      sum of their parts (`last_layers` names some).
    - `by_block`: keeps the parts of the map by block of parameters (`Blocks`).
    - `measures`: one for each observed response, in place of its tokens' log π: `F[m, l]` is then
      the push on what is measured at token m (`ledger.measures`), as its entropy.

    **Returns:** nats per step; positive where the step through token l makes token m likelier, or
    raises what is measured there.

    **Raises:** `ConfigError` for responses without tokens or too long, weights that are not finite,
    16-bit arithmetic, or a folder that holds another map.
    """
    problem = pose(
        policy,
        observed,
        updating,
        objective,
        update=update,
        at=at,
        parameters=parameters,
        measures=measures,
    )
    blocks = Blocks.of(problem.gradients) if by_block else None
    facts = _facts(problem, objective, update, measures is not None)
    lengths = [sequence.response_length for sequence in observed]
    mine = distributed.share_of(lengths) if over_ranks else slice(0, len(observed))
    rows = slice(sum(lengths[: mine.start]), sum(lengths[: mine.stop]))
    shape = (sum(lengths), problem.columns)
    if folder is None:
        filled = _InMemory.of(rows, shape[1], _numpy(policy), blocks)
        _fill(filled, problem, mine, rows.start, memory_bytes, blocks)
        ranks = (
            distributed.gather((filled.matrix, filled.parts))
            if over_ranks
            else [(filled.matrix, filled.parts)]
        )
        responses = tuple(sequence.ids[sequence.prompt_length :] for sequence in observed)
        parts = None
        if blocks is not None:
            joined = np.concatenate([part for _, part in ranks], axis=1)
            parts = dict(zip(blocks.names, joined, strict=True))
        matrix = np.concatenate([matrix for matrix, _ in ranks])
        return ForceMap(matrix, responses, tuple(problem.labels), facts, parts)
    manifest = _manifest(problem, facts, shape, update, updating, blocks)
    begin = partial(MapFolder.begin, folder, manifest)
    # Ranks that replayed a step may differ in its last bits and so in the fingerprint.
    join = partial(MapFolder.join, folder)
    sink = distributed.rank_zero_first(begin, join) if over_ranks else begin()
    _fill(sink, problem, mine, rows.start, memory_bytes, blocks)
    if over_ranks:
        distributed.barrier()
    return ForceMap.open(folder)


@dataclass(frozen=True)
class Problem:
    """`F = η ⟨∇ s_m, P ∇ s_l⟩`: the gradients, both sides' responses, and the factor η.

    An observed token's s is its own log π, or what is measured there; an updating one's has the
    objective's c for weights. `labels` names the updating responses. `rate` is η, or 1 if the
    metric P includes η.
    """

    gradients: TokenGradients
    observed: list[WeightedResponse]
    updating: list[WeightedResponse]
    labels: list[Updating]
    rate: float

    @property
    def columns(self) -> int:
        """The number of updating tokens."""
        return sum(len(response.weights) for response in self.updating)


def pose(
    policy: PolicyFunction,
    observed: Sequence[Encoded],
    updating: Sequence[Recorded],
    objective: Objective,
    *,
    update: float | FrozenUpdate,
    at: Weights | None,
    parameters: Collection[str] | None = None,
    measures: Sequence[Measure] | None = None,
) -> Problem:
    """Checks a force map's arguments (`force_map`) and scores its updating responses."""
    check_arithmetic(policy.dtype, "products of gradients of 8 significant bits have no sign")
    sequences = [
        sequence for example in updating for _, sequence in example.responses(objective.sides)
    ]
    check_items(policy.causal, observed=observed, updating=sequences)
    if isinstance(update, FrozenUpdate):
        moving, scale, rate = set(update.scale), update.scale, 1.0
    else:
        moving, scale, rate = subspace(policy), None, update
    if parameters is not None:
        moving &= set(parameters)
        if not moving:
            raise ConfigError("parameters", sorted(parameters), "none of them is trained")
        scale = None if scale is None else {name: scale[name] for name in moving}
    first = observed[0]
    sample = Encoded(first.ids[: first.prompt_length + SAMPLE_TOKENS], first.prompt_length)
    gradients = TokenGradients.build(policy, at, moving, scale, sample)
    if measures is None:
        responses = [WeightedResponse.own(sequence, policy) for sequence in observed]
    else:
        responses = [
            WeightedResponse.measured(sequence, policy, gradients.at, measure)
            for sequence, measure in zip(observed, measures, strict=True)
        ]
    return Problem(
        gradients=gradients,
        observed=responses,
        updating=weighted_responses(policy, gradients.at, updating, objective),
        labels=labelled(updating, objective),
        rate=rate,
    )


def _fill(
    sink: _InMemory | MapFolder,
    problem: Problem,
    observed: slice,
    top: int,
    memory_bytes: int | None,
    blocks: Blocks | None,
) -> None:
    """Writes the missing tiles of some observed responses, whose rows begin at `top`."""
    gradients, ours = problem.gradients, problem.observed[observed]
    if not ours:
        return
    memory = memory_for(gradients.policy.device, memory_bytes)
    rows, columns = plan_tiles(gradients, ours, problem.updating, memory)

    def bounds(tile: Tile) -> Bounds:
        return tile[0].start + top, tile[0].stop + top, tile[1].start, tile[1].stop

    tiles = gram_tiles(
        gradients,
        rows,
        columns,
        is_missing=lambda tile: not sink.holds(bounds(tile)),
        workspace=memory // 4,
        blocks=1 if blocks is None else len(blocks.names),
        number=(lambda name, use: 0) if blocks is None else blocks.number,
    )
    for tile, gram in tiles:
        parts = problem.rate * gram
        force = parts.sum(0)
        if not bool(torch.isfinite(force).all()):
            raise DynolabError(f"force map: rows and columns {bounds(tile)} are not finite")
        block_values = () if blocks is None else (parts.cpu().numpy(),)
        sink.write(bounds(tile), force.cpu().numpy(), *block_values)


@dataclass
class _InMemory:
    """Some rows of a map, from row `top` on, and of its blocks' parts."""

    matrix: np.ndarray
    parts: np.ndarray
    top: int

    @classmethod
    def of(cls, rows: slice, columns: int, dtype: np.dtype, blocks: Blocks | None) -> _InMemory:
        """Zeros."""
        shape = rows.stop - rows.start, columns
        count = 0 if blocks is None else len(blocks.names)
        return cls(np.zeros(shape, dtype), np.zeros((count, *shape), dtype), rows.start)

    def holds(self, bounds: Bounds) -> bool:
        return False

    def write(self, bounds: Bounds, values: np.ndarray, parts: np.ndarray | None = None) -> None:
        top, bottom, first, last = bounds
        rows = slice(top - self.top, bottom - self.top)
        self.matrix[rows, first:last] = values
        if parts is not None:
            self.parts[:, rows, first:last] = parts


def _facts(
    problem: Problem, objective: Objective, update: float | FrozenUpdate, measured: bool
) -> MapFacts:
    gradients = problem.gradients
    everything = set(gradients.policy.weights)
    return MapFacts(
        dtype=str(_numpy(gradients.policy)),
        attention="torch scaled_dot_product_attention, math kernel",
        objective=f"{type(objective).__name__} {vars(objective)}",
        learning_rate=None if isinstance(update, FrozenUpdate) else update,
        preconditioned=isinstance(update, FrozenUpdate),
        subspace="all" if gradients.moving == everything else sorted(gradients.moving),
        **({"units": MEASURED_UNITS} if measured else {}),
    )


def _manifest(
    problem: Problem,
    facts: MapFacts,
    shape: tuple[int, int],
    update: float | FrozenUpdate,
    updating: Sequence[Recorded],
    blocks: Blocks | None,
) -> dict[str, Any]:
    """The folder's manifest, with a fingerprint of everything the numbers depend on."""
    observed = [response.sequence for response in problem.observed]
    names = {} if blocks is None else {"blocks": list(blocks.names)}
    fingerprint = hashlib.sha256(json.dumps(asdict(facts) | names).encode())
    for tensors in (problem.gradients.at, problem.gradients.scale or {}):
        for name in sorted(tensors):
            fingerprint.update(name.encode())
            fingerprint.update(tensors[name].contiguous().cpu().numpy().data)
    for response in problem.observed:
        fingerprint.update(repr(response.sequence).encode())
        if facts.units == MEASURED_UNITS:
            fingerprint.update(response.weights.contiguous().cpu().numpy().data)
    for example in updating:
        fingerprint.update(example.model_dump_json().encode())
    return {
        "fingerprint": fingerprint.hexdigest(),
        "shape": list(shape),
        "dtype": facts.dtype,
        "facts": asdict(facts),
        "observed": [list(sequence.ids[sequence.prompt_length :]) for sequence in observed],
        "updating": [asdict(label) for label in problem.labels],
        "observed_offsets": _offsets([sequence.response_length for sequence in observed]),
        "updating_offsets": _offsets([len(label.tokens) for label in problem.labels]),
    } | names


def _numpy(policy: PolicyFunction) -> np.dtype:
    return np.dtype(str(policy.dtype).removeprefix("torch."))


def _offsets(lengths: Sequence[int]) -> list[int]:
    return [0, *accumulate(lengths)]
