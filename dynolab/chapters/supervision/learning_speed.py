"""How fast kinds of examples are learned, by the influence that training accumulates on them.

One step of full-batch gradient descent on the mean loss moves `log p(y_o | x_o)` by

    Δ_o = η/N Σ_u ⟨∇ log p_o, ∇ log p_u⟩ + O(η²),

a sum over the updating examples u: the same product A·K·G as everywhere, with the label's row of
A and the force G_u = p − e_y. Summed over the steps it is the *accumulated influence*, and it
falls into what an example does for itself and what every group of others does for it.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from dynolab.forces.classifiers.gram import gradient_gram, without_layer


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
    model: nn.Module,
    inputs: Float[Tensor, "examples ..."],
    labels: Int[Tensor, " examples"],
    groups: Int[Tensor, " examples"],
    *,
    steps: int,
    learning_rate: float,
) -> Influences:
    """Trains a copy of a network on all examples at once and accounts for every step.

    **Arguments:** `groups`: of every example, counted from 0.
    """
    model, rows = deepcopy(model), torch.arange(len(labels))
    weights = list(model.parameters())
    generic = without_layer(model, inputs)
    members = functional.one_hot(groups.long()).to(inputs.dtype)
    measured: list[Tensor] = []
    own, others = [torch.zeros(len(labels)).to(inputs)], [torch.zeros_like(members)]
    for step in range(steps + 1):
        logits = model(inputs)
        logps = logits.log_softmax(-1)
        measured.append(logps[rows, labels].detach())
        if step == steps:
            break
        # ∂ log p_y/∂z = e_y − p: the label's row of A, and minus the force.
        pull = (functional.one_hot(labels, logits.shape[-1]) - logps.exp()).detach()[:, None]
        gram = gradient_gram(model, inputs, pull, inputs, pull, generic=generic)[:, :, 0, 0]
        influence = learning_rate / len(labels) * gram
        itself = influence.diagonal()
        own.append(own[-1] + itself)
        others.append(others[-1] + influence @ members - itself[:, None] * members)
        gradients = torch.autograd.grad(functional.nll_loss(logps, labels), weights)
        with torch.no_grad():
            for w, gradient in zip(weights, gradients, strict=True):
                w.sub_(learning_rate * gradient)
    paths = torch.stack(measured)
    return Influences(paths - paths[0], torch.stack(own), torch.stack(others))


def speed(path: Float[Tensor, " steps"]) -> float:
    """Mean over the steps of what was accumulated by then: the area under the path, in nats.

    Of two paths to the same end the steeper one is faster; of two of one shape the higher.
    """
    return float(path[1:].mean())
