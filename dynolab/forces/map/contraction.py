"""Inner products of per-token gradients from their factors, parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dynolab.forces.function.weights import Weights
from dynolab.forces.map.costs import cheapest_order, slice_width
from dynolab.forces.map.factors import Factors, Outer, Point, Rows

Into = Callable[[str, str], Float[Tensor, "observed updating"]]
"""The accumulator of a parameter's part, by name and use: `own`, or for a shared table also `head`
(its use as head) and `tied` (the product of its use as embedding with that as head)."""

SLICE = 2**13
"""Entries of a gradient formed at once on a CPU: enough for a product's full speed, and still in
cache. A GPU forms as many as the workspace holds: there the number of products counts."""

LEAST_OUTPUTS = 8
"""Fewer are not formed at once: signals are read in pieces of as many neighbours in memory."""


@torch.no_grad()
def contract(
    observed: Sequence[Factors],
    updating: Sequence[Factors],
    into: Into,
    *,
    scale: Weights | None,
    workspace: int,
) -> None:
    """Adds `⟨∇_p s_m, P_p ∇_p s_l⟩` of every parameter p to its accumulator (`WeightedResponse`).

    Rows are the observed sequences' tokens one after the other, columns the updating ones'.

    **Arguments:**

    - `scale`: diagonal P by parameter name; None for the identity.
    - `workspace`: most bytes of gradients formed at a time.
    """
    first = observed[0]
    for name in first.outer:
        left = [factors.outer[name] for factors in observed]
        right = [factors.outer[name] for factors in updating]
        _matrix(left, right, into(name, "own"), _of(scale, name), workspace)
    for name in {**first.rows, **first.point}:
        _table(name, observed, updating, into, _of(scale, name), workspace)
    for name in first.dense:
        left_vectors = torch.cat([factors.dense[name] for factors in observed])
        right_vectors = torch.cat([factors.dense[name] for factors in updating])
        if scale is not None:
            right_vectors = right_vectors * scale[name].flatten()
        into(name, "own").addmm_(left_vectors, right_vectors.T)


def _of(scale: Weights | None, name: str) -> Float[Tensor, "rows columns"] | None:
    return None if scale is None else scale[name]


def _matrix(
    observed: Sequence[Outer],
    updating: Sequence[Outer],
    out: Float[Tensor, "observed updating"],
    scale: Float[Tensor, "rows columns"] | None,
    workspace: int,
) -> None:
    if scale is not None:
        rows_last = scale.T if observed[0].transposed else scale
        formed_gradients(observed, updating, out, rows_last, workspace)
        return
    left_shapes = [(len(outer.signal), len(outer.input)) for outer in observed]
    right_shapes = [(len(outer.signal), len(outer.input)) for outer in updating]
    d_in, d_out = observed[0].input.shape[-1], observed[0].signal.shape[-1]
    order = cheapest_order(left_shapes, right_shapes, d_in, d_out)
    if order == "formed":
        formed_gradients(observed, updating, out, None, workspace)
    elif order == "kernel":
        carried_signals(observed, updating, out)
    else:
        carried_signals(updating, observed, out.T)


def formed_gradients(
    observed: Sequence[Outer],
    updating: Sequence[Outer],
    out: Float[Tensor, "observed updating"],
    scale: Float[Tensor, "rows columns"] | None,
    workspace: int,
) -> None:
    """Order (i): form `g_m = Σ_s δ_{m,s} a_sᵀ` on both sides, then one matrix product.

    Some of the outputs at a time. `scale` is d_out × d_in.
    """
    d_in, d_out = observed[0].input.shape[-1], observed[0].signal.shape[-1]
    unit = sum(out.shape) * d_in * out.element_size()
    most = d_out if out.is_cuda else min(d_out, max(LEAST_OUTPUTS, SLICE // d_in))
    width = slice_width(workspace, unit, most)
    # Gradients of both sides, by some of the outputs, in the same memory for all parts.
    rows, columns = out.shape
    left_memory = out.new_empty(rows * width * d_in)
    right_memory = out.new_empty(columns * width * d_in)
    parts = torch.arange(d_out).chunk(-(-d_out // width))  # equal ones: no last sliver
    for part in parts:
        outputs, size = slice(int(part[0]), int(part[-1]) + 1), len(part) * d_in
        left = _form(observed, left_memory[: rows * size].view(rows, -1), outputs)
        right = _form(updating, right_memory[: columns * size].view(columns, -1), outputs)
        if scale is not None:
            right *= scale[outputs].flatten()
        out.addmm_(left, right.T)


def _form(
    side: Sequence[Outer], gradients: Float[Tensor, "tokens entries"], outputs: slice
) -> Float[Tensor, "tokens entries"]:
    """Gradients of some of the outputs: for each response one product over its positions."""
    start = 0
    for factor in side:
        stop = start + len(factor.signal)
        signals = factor.signal[..., outputs].mT.flatten(0, 1)
        torch.mm(signals, factor.input, out=gradients[start:stop].view(len(signals), -1))
        start = stop
    return gradients


def carried_signals(
    observed: Sequence[Outer], updating: Sequence[Outer], out: Float[Tensor, "observed updating"]
) -> None:
    """Order (iii): with `C = a_o a_uᵀ`, `E_{l,s} = Σ_t C_st δ_{l,t}`, then `Σ_s δ_{m,s}·E_{l,s}`.

    No gradient is formed: the updating signals are carried to the observed positions.
    """
    longest, d_out = max(len(ours.input) for ours in observed), observed[0].signal.shape[-1]
    buffer = out.new_empty(out.shape[1] * longest * d_out)
    top = 0
    for ours in observed:
        positions = len(ours.input)
        carried = buffer[: out.shape[1] * positions * d_out].view(-1, positions, d_out)
        start = 0
        for theirs in updating:
            stop = start + len(theirs.signal)
            kernel = (ours.input @ theirs.input.T).expand(stop - start, -1, -1)
            torch.bmm(kernel, theirs.signal, out=carried[start:stop])
            start = stop
        rows = out[top : top + len(ours.signal)]
        rows.addmm_(ours.signal.flatten(1), carried.flatten(1).T)
        top += len(ours.signal)


def _table(
    name: str,
    observed: Sequence[Factors],
    updating: Sequence[Factors],
    into: Into,
    scale: Float[Tensor, "rows columns"] | None,
    workspace: int,
) -> None:
    """A matrix of rank-one gradients (such as the head's), an embedding, or both in one."""
    embeds, heads = name in observed[0].rows, name in observed[0].point
    if heads:
        left, right = _joined(name, observed), _joined(name, updating)
        target = into(name, "own" if not embeds else "head")
        if scale is None:
            target += (left.input @ right.input.T) * (left.signal @ right.signal.T)
        else:
            _scaled_points(left, right, target, scale, workspace)
    if embeds:
        _tables(name, observed, updating, into(name, "own"), scale)
    if heads and embeds:
        tied = into(name, "tied")
        _crossed([f.rows[name] for f in observed], right, tied, scale)
        _crossed([f.rows[name] for f in updating], left, tied.T, scale)


def _joined(name: str, side: Sequence[Factors]) -> Point:
    points = [f.point[name] for f in side]
    return Point(
        torch.cat([p.input for p in points]),
        torch.cat([p.signal for p in points]),
        points[0].transposed,
    )


def _scaled_points(
    left: Point,
    right: Point,
    out: Float[Tensor, "observed updating"],
    scale: Float[Tensor, "rows columns"],
    workspace: int,
) -> None:
    """`Σ_{v,i} δ_m[v] h_m[i] P[v,i] δ_l[v] h_l[i]`: P breaks rank one, so rows v are formed."""
    scale = scale.T if left.transposed else scale
    outputs, d = scale.shape
    tokens = out.shape[0] + out.shape[1]
    width = slice_width(workspace, tokens * d * out.element_size(), outputs)
    for low in range(0, outputs, width):
        rows = slice(low, low + width)
        ours, theirs = (p.signal[:, rows, None] * p.input[:, None, :] for p in (left, right))
        out.addmm_(ours.flatten(1), (theirs * scale[rows]).flatten(1).T)


def _tables(
    name: str,
    observed: Sequence[Factors],
    updating: Sequence[Factors],
    out: Float[Tensor, "observed updating"],
    scale: Float[Tensor, "vocabulary d"] | None,
) -> None:
    """`Σ_v rows_m[v] · P_v rows_l[v]`, one product for each token v that occurs on both sides."""
    left, right = _by_token(name, observed), _by_token(name, updating)
    for token in left.keys() & right.keys():
        rows, ours = (torch.cat(parts) for parts in zip(*left[token], strict=True))
        columns, theirs = (torch.cat(parts) for parts in zip(*right[token], strict=True))
        if scale is not None:
            theirs = theirs * scale[token]
        out.index_put_((rows[:, None], columns), ours @ theirs.T, accumulate=True)


def _by_token(
    name: str, side: Sequence[Factors]
) -> dict[int, list[tuple[Int[Tensor, " _"], Float[Tensor, "_ d"]]]]:
    """For each token of the table: where gradients of its row stand, and the gradients."""
    gradients: dict[int, list[tuple[Int[Tensor, " _"], Float[Tensor, "_ d"]]]] = {}
    start = 0
    for factors in side:
        table = factors.rows[name]
        stop = start + factors.tokens
        where = torch.arange(start, stop, device=table.rows.device)
        for column, token in enumerate(table.ids):
            gradients.setdefault(token, []).append((where, table.rows[:, column]))
        start = stop
    return gradients


def _crossed(
    embedded: Sequence[Rows],
    heads: Point,
    out: Float[Tensor, "embedded heads"],
    scale: Float[Tensor, "vocabulary d"] | None,
) -> None:
    """`Σ_v signal_l[v] (rows_m[v] · P_v h_l)`: embedding side of m against head side of l."""
    top = 0
    for table in embedded:
        rows = table.rows if scale is None else table.rows * scale[table.ids]
        products = rows @ heads.input.T
        products *= heads.signal[:, table.ids].T
        out[top : top + len(rows)] += products.sum(1)
        top += len(rows)
