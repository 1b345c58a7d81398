"""The rows of the comparison of supervisory signals, and of learning speeds."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row

Arm = Literal[
    "one_hot", "early_stopping", "one_hot_twice", "label_smoothing", "kd", "eskd", "filter_kd"
]
"""The supervision of a network.

`one_hot`: the given labels, to the end, and `early_stopping` the same up to the best validation
accuracy; `one_hot_twice`: at twice the learning rate, the control for distillation, whose force
at τ = 1 is twice cross-entropy's; `label_smoothing`; `kd` and `eskd`: predictions of the converged
and the early-stopped teacher; `filter_kd`: the teacher's predictions, averaged over its training.
"""

DetectionScore = Literal["filter", "path", "last", "zigzag"]
"""The score by which wrong labels are detected.

`filter`: 1 − q_y of Filter-KD's table; `path`: 1 − p_y, mean over the epochs; `last`: 1 − p_y
after training; `zigzag`: the zig-zag score of the learning path.
"""


class SupervisionRow(Row):
    """One arm's network of one seed at one noise level: `supervision.jsonl`.

    `accuracy` and `nll` (nats) are on clean test labels. `target_error` is E‖q − e_true‖₂ of the
    targets q of the training examples. `believed_wrong`: share of the wrongly labelled training
    examples for which the network predicts the wrong label; None where no label is wrong.
    """

    arm: Arm
    noise: float
    seed: int
    accuracy: float
    nll: float
    target_error: float
    believed_wrong: float | None


class DetectionRow(Row):
    """How well a score tells wrong labels from right ones in a training: `detections.jsonl`.

    `auc`: share of (wrong, right) couples in which the wrong one has the higher score.
    """

    score: DetectionScore
    noise: float
    seed: int
    auc: float


Contrast = Literal["clean-noisy", "coherent-contradictory"]


class SpeedRow(Row):
    """Accumulated influence on one kind of examples in one training: `speeds.jsonl`.

    All in nats of log p of the given label, means over the examples of that kind. `influence[t]`
    is accumulated to first order up to step `steps[t]`, `measured[t]` the change itself;
    `influence` = `own` + `from_alike` + `from_others`: by the example itself, by other examples
    of its kind, and by those of the other kind. `speed` is the mean of the influence over all
    steps.
    """

    contrast: Contrast
    kind: str
    seed: int
    steps: tuple[int, ...]
    influence: tuple[float, ...]
    measured: tuple[float, ...]
    own: tuple[float, ...]
    from_alike: tuple[float, ...]
    from_others: tuple[float, ...]
    speed: float


Direction = Literal["causal", "anti-causal"]


class AdaptationRow(Row):
    """How a learner adapts to an intervention on the cause, one seed: `adaptations.jsonl`.

    `causal` holds p(A) and p(B|A), `anti-causal` p(B) and p(A|B). `kl[t]` is the divergence of its
    joint from the true one after t examples, nats, mean over problems.
    """

    direction: Direction
    seed: int
    learning_rate: float
    kl: tuple[float, ...]

    @property
    def delay(self) -> float:
        """Mean of `kl` from the first example on: the mean distance from the true joint."""
        return sum(self.kl[1:]) / (len(self.kl) - 1)
