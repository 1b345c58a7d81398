"""Forces: what one optimizer step does to every answer, and through which of its parts.

`PolicyFunction` is the model as a function of its weights; everything else differentiates it:
`one_step` along a whole change of the weights, `split` along the parts of a recorded optimizer
step, `token_map` along one update token at a time. `force_map` is the push of many updating
responses' tokens on many observed ones', `breakdown` the same by parameter block. `step_forces`
and `build_token_map` turn a step's record into result rows, `step_validity` says how far first
order carries from it. `kernel_sizes` measures how strongly responses are coupled,
`kernel_stability` whether the same pairs stay strongly coupled. `features` is the same for
hidden layers, `ledger` the account of a whole training.
"""

from dynolab.forces.features import (
    Consistency,
    FeatureForce,
    consistency,
    feature_forces,
    feature_step,
    hidden_states,
    step_layers,
)
from dynolab.forces.function.policy import PolicyFunction
from dynolab.forces.function.rules import last_layers
from dynolab.forces.function.views import View
from dynolab.forces.function.weights import Weights
from dynolab.forces.kernel.operator import TangentKernel, kernel_blocks, response_token
from dynolab.forces.kernel.size import KernelSizes, kernel_sizes
from dynolab.forces.kernel.stability import Agreement, kernel_stability
from dynolab.forces.map.breakdown import Breakdown, breakdown
from dynolab.forces.map.force_map import ForceMap, MapFacts, force_map
from dynolab.forces.map.terms import (
    TokenTerms,
    UpdatingTerms,
    kernel_lower_bound,
    paper_influence,
    response_terms,
    step_terms,
    token_terms,
)
from dynolab.forces.map.token_map import build_token_map, token_forces
from dynolab.forces.step.one_step import (
    OneStep,
    SecondOrder,
    change_of,
    measured_change,
    midpoint,
    one_step,
    second_order,
)
from dynolab.forces.step.optimizers import FrozenUpdate
from dynolab.forces.step.split import (
    SideGradients,
    UpdateSplit,
    record_batch,
    replay_error,
    rounding_floor,
    side_gradients,
    split_step,
)
from dynolab.forces.step.step_forces import StepForces, step_forces, step_validity

__all__ = [
    "Agreement",
    "Breakdown",
    "Consistency",
    "FeatureForce",
    "ForceMap",
    "FrozenUpdate",
    "KernelSizes",
    "MapFacts",
    "OneStep",
    "PolicyFunction",
    "SecondOrder",
    "SideGradients",
    "StepForces",
    "TangentKernel",
    "TokenTerms",
    "UpdateSplit",
    "UpdatingTerms",
    "View",
    "Weights",
    "breakdown",
    "build_token_map",
    "change_of",
    "consistency",
    "feature_forces",
    "feature_step",
    "force_map",
    "hidden_states",
    "kernel_blocks",
    "kernel_lower_bound",
    "kernel_sizes",
    "kernel_stability",
    "last_layers",
    "measured_change",
    "midpoint",
    "one_step",
    "paper_influence",
    "record_batch",
    "replay_error",
    "response_terms",
    "response_token",
    "rounding_floor",
    "second_order",
    "side_gradients",
    "split_step",
    "step_forces",
    "step_layers",
    "step_terms",
    "step_validity",
    "token_forces",
    "token_terms",
]
