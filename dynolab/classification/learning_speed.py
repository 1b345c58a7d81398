"""How fast kinds of examples are learned, by the influence that training accumulates on them.

One step of full-batch gradient descent on the mean loss moves `log p(y_o | x_o)` by

    Δ_o = η/N Σ_u ⟨∇ log p_o, ∇ log p_u⟩ + O(η²),

a sum over the updating examples u: the same product A·K·G as everywhere, with the label's row of
A and the force G_u = p − e_y. Summed over the steps it is the *accumulated influence*, and it
falls into what an example does for itself and what every group of others does for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import grad, vmap

Weights = dict[str, Tensor]
Classifier = Callable[[Weights, Tensor], Float[Tensor, "examples classes"]]
"""Logits of a batch, by weights and inputs."""


@dataclass(frozen=True)
class Influences:
    """What full-batch training did to its own examples, up to each of its steps, in nats.

    Entry 0 of a path is the start. `from_groups[t, o, g]` is the accumulated first-order
    influence on example o of the examples of group g other than itself, `own[t, o]` its influence
    on itself, `measured[t, o]` the change of `log p(y_o | x_o)` since the start.
    """

    measured: Float[Tensor, "steps examples"]
    own: Float[Tensor, "steps examples"]
    from_groups: Float[Tensor, "steps examples groups"]

    @property
    def total(self) -> Float[Tensor, "steps examples"]:
        """Accumulated influence of all examples."""
        return self.own + self.from_groups.sum(-1)


def accumulate(
    classifier: Classifier, weights: Mapping[str, Tensor], inputs: Float[Tensor, "examples ..."],
    labels: Int[Tensor, examples], groups: Int[Tensor, examples], *,
    steps: int, learning_rate: float,
) -> Influences:  # fmt: skip
    """Trains on all examples at once and accounts for every step.

    The N × N influences of a step are never held: with J the gradients of all log-probabilities
    and M the 0/1 matrix of groups, those from groups are `η/N · J (Jᵀ M)`.

    **Arguments:** `groups`: of every example, counted from 0.
    """
    now = {name: value.detach().clone() for name, value in weights.items()}
    members = torch.nn.functional.one_hot(groups.long()).to(inputs.dtype)
    rate, rows = learning_rate / len(labels), torch.arange(len(labels))

    def label_logp(one: Weights, x: Tensor, y: Tensor) -> Tensor:
        return classifier(one, x[None])[0].log_softmax(-1).gather(0, y[None])[0]

    def logp() -> Float[Tensor, examples]:
        return classifier(now, inputs).log_softmax(-1)[rows, labels]

    gradients = vmap(grad(label_logp), (None, 0, 0))
    first = logp()
    measured, own = [torch.zeros_like(first)], [torch.zeros_like(first)]
    others = [torch.zeros_like(members)]
    for _ in range(steps):
        each = gradients(now, inputs, labels)
        j = torch.cat([value.flatten(1) for value in each.values()], dim=1)
        self_influence = rate * j.square().sum(1)
        received = rate * (j @ (j.T @ members)) - self_influence[:, None] * members
        own.append(own[-1] + self_influence)
        others.append(others[-1] + received)
        now = {name: now[name] + rate * value.sum(0) for name, value in each.items()}
        measured.append(logp() - first)
    return Influences(torch.stack(measured), torch.stack(own), torch.stack(others))


def speed(path: Float[Tensor, steps]) -> float:
    """Mean over the steps of what was accumulated by then: the area under the path, in nats.

    Of two paths to the same end the steeper one is faster; of two of one shape the higher.
    """
    return float(path[1:].mean())
