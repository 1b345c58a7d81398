"""What weights of examples do to the end of a training, by differentiation through all its steps.

Give example i of step s a weight w, 1 in the training that was made: `g_s = Σ_i w_{s,i} g_{s,i}`.
Momentum SGD, κ the clip factor: `b_s = μ b_{s−1} + κ(g_s) g_s + λ θ_s`, `θ_{s+1} = θ_s − η_s b_s`.
Reverse-mode differentiation of all steps (MAGIC: Ilyas & Engstrom, arXiv 2504.16430) begins with
`a_T = ∇q(θ_T)` and goes from the last step back to the first:

- `U_s = η_s a_{s+1} + μ U_{s+1}`: minus the derivative of q(θ_T) by what enters momentum at step s.
  The ledger's U (`account.py`) has the step's own slope of q in the place of a;
- `E_s = (∂(κ g)/∂g)ᵀ U_s`: minus the derivative by the batch's gradient;
- `∂q(θ_T)/∂w_{s,i} = −⟨E_s, g_{s,i}⟩`;
- `a_s = a_{s+1} − (∂g_s/∂θ)ᵀ E_s − λ U_s`: one Hessian-vector product for every functional.

The ledger adds up what each gradient moved along this training's way. Here it also counts that the
later steps would have been others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dynolab.errors import check_settings
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.weights import flatten, products
from dynolab.forces.ledger.account import check_follows
from dynolab.forces.ledger.functional import Functional, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.step.split import objective_logps, side_gradients, step_batches
from dynolab.objectives import build_objective
from dynolab.training.config import DIFFERENTIATED
from dynolab.training.engine import CLIP_EPSILON
from dynolab.training.step_record import RecordedGroup, StepRecord


@dataclass(frozen=True)
class StepMetagradient:
    """`∂q(θ_T)/∂w` of a step's examples, in nats per unit of weight; a column is a functional."""

    step: int
    examples: tuple[str, ...]
    nats: Float[Tensor, "examples functionals"]


class Metagradient:
    """Differentiates functionals of a training's end, step by step from the last to the first.

    **Arguments:**

    - `policy`: the recorded model.
    - `functionals`: what is differentiated, at the weights after the step that is entered first.
    - `batch_tokens`: bound of sequences × padded length of one forward; default: the policy's.

    Memory: about three gradients per functional, and the graph of a batch's gradient.
    """

    def __init__(
        self,
        policy: PolicyFunction,
        functionals: Sequence[Functional],
        *,
        batch_tokens: int | None = None,
    ) -> None:
        self._policy, self._functionals = policy, functionals
        self._batch_tokens = batch_tokens or policy.batch_tokens
        # The step entered last, and the weights before it.
        self._at: tuple[int, Float[Tensor, " parameters"]] | None = None
        # a_{s+1} and U_{s+1}, a row a functional.
        self._by_parameters = self._sensitivity = torch.zeros(())

    def enter(self, record: StepRecord) -> StepMetagradient:
        """The derivatives by the weights of the examples of the step before the one entered last.

        **Raises:** `ConfigError` for a step that does not end where the one entered last begins,
        for optimizers other than SGD, and for examples that the policy sampled itself.
        """
        check_differentiable(record)
        policy, facts = self._policy, record.facts
        after = flatten(policy.cast(record.after))
        if self._at is None:
            answers = [term.sequence for q in self._functionals for term in q.terms]
            route = GroupedGradients.build(policy, record.after, answers[:2])
            self._by_parameters = slopes_of(
                self._functionals, route, record.after, batch_tokens=self._batch_tokens
            ).gradients
        else:
            check_follows(record, after, *self._at)
        momentum, decay = facts.optimizer.momentum, facts.optimizer.weight_decay
        # U_s, E_s and (∂g_s/∂θ)ᵀ E_s, as the equations above have them.
        sensitivity = facts.learning_rate * self._by_parameters + momentum * self._sensitivity
        by_gradient = self._through_clipping(record, sensitivity)
        nats, through_gradient = self._derivatives(record, by_gradient)
        self._by_parameters = self._by_parameters - through_gradient - decay * sensitivity
        self._sensitivity = sensitivity
        self._at = (facts.step, flatten(policy.cast(record.before)))
        return StepMetagradient(facts.step, tuple(example.id for example in record.examples), -nats)

    def _through_clipping(
        self, record: StepRecord, entering: Float[Tensor, "functionals parameters"]
    ) -> Float[Tensor, "functionals parameters"]:
        """`κ (U − g ⟨g, U⟩ / (n (n + ε)))`, n = ‖g‖: what is clipped cannot grow along itself."""
        factor = record.facts.clip_factor
        if factor == 1:
            return entering
        sides = side_gradients(record, self._policy, batch_tokens=self._batch_tokens)
        gradient = flatten(sides.chosen) + flatten(sides.rejected)
        norm = gradient.norm()
        share = products(entering, gradient[None]).to(entering) / (norm * (norm + CLIP_EPSILON))
        return factor * (entering - share * gradient)

    def _derivatives(
        self, record: StepRecord, along: Float[Tensor, "functionals parameters"]
    ) -> tuple[Float[Tensor, "examples functionals"], Float[Tensor, "functionals parameters"]]:
        """Of `⟨E, g_s⟩`, for every E, by the examples' weights and by the parameters.

        `g = Σ_l −w c_l ∇log π_l`, and both c_l and ∇log π_l change with the parameters.
        """
        policy, objective = self._policy, build_objective(record.facts.objective)
        leaves = {name: w.requires_grad_() for name, w in policy.cast(record.before).items()}
        weights = along.new_ones(len(record.examples), requires_grad=True)
        by_weights = along.new_zeros(len(record.examples), len(along))
        by_parameters = torch.zeros_like(along)
        batches = step_batches(record.examples, objective, policy, self._batch_tokens)
        for examples, batch in batches:
            # The example of every response, then the weight of every token.
            place = [n for n in examples for _ in record.examples[n].responses(objective.sides)]
            weight = weights[torch.tensor(place, device=weights.device)][batch.sequence]
            logps = objective_logps(policy, leaves, batch, objective)
            # −w c of every log π: a token has one, or one for each of several targets.
            pulls = -weight.view(-1, *[1] * (logps.dim() - 1)) * objective.token_weights(
                logps, batch
            )
            gradient = torch.autograd.grad(
                logps, list(leaves.values()), pulls, create_graph=True, materialize_grads=True
            )
            total = torch.cat([part.flatten() for part in gradient])
            for number, direction in enumerate(along):
                inputs = [weights, *leaves.values()]
                # A vector-Jacobian product with E, as g has a graph of its own.
                by_example_weight, *rest = torch.autograd.grad(
                    total, inputs, direction, retain_graph=True, materialize_grads=True
                )
                by_weights[:, number] += by_example_weight
                by_parameters[number] += torch.cat([part.flatten() for part in rest])
        return by_weights, by_parameters


def check_differentiable(record: StepRecord) -> None:
    """Raises `ConfigError` for a step that this file has no derivative of."""
    facts, examples = record.facts, record.examples
    check_settings(
        (
            facts.optimizer.name not in DIFFERENTIATED,
            "optimizer.name",
            facts.optimizer.name,
            f"metagradients go through {', '.join(DIFFERENTIATED)} alone",
        ),
        (
            any(getattr(example, "rejected_dose", None) is not None for example in examples),
            "record",
            facts.step,
            "its doses were chosen at its weights and would be others at others; give a training "
            "without designed_dose and calibrated",
        ),
        (
            any(isinstance(example, RecordedGroup) for example in examples),
            "record",
            facts.step,
            "its completions were sampled by the policy and would be others at other weights; "
            "give a training on rows",
        ),
    )
