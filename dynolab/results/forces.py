"""The rows of a force analysis: its settings, pair totals, and the parts by parameter block."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from dynolab.data.rows import Row, Split


class Measured(Row):
    """A row whose numbers may be NaN: without any force, shares are 0/0."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


class PairForce(Row):
    """First-order push of one updating pair on one observed answer, in nats: sums over F[m, l].

    `from_chosen` goes through the pair's chosen tokens (the pull up), `from_rejected` through its
    rejected ones (the push down); their sum is the pair's share of the step. `from_head` is the
    prediction of that sum by the last layer alone.
    """

    observed_id: str
    split: Split
    kind: str
    tokens: int
    updating_id: str
    from_chosen: float
    from_rejected: float
    from_head: float

    @property
    def total(self) -> float:
        """Push through all of the pair's tokens."""
        return self.from_chosen + self.from_rejected


class BlockPart(Measured):
    """A parameter block's part F_b of a force map F: `share` = ‖F_b‖/‖F‖, `projection` =
    ⟨F_b, F⟩/‖F‖². Projections add up to one, shares need not: parts can oppose each other.
    """

    block: str
    share: float
    projection: float


class LastLayerFit(Measured):
    """Last layer's map F_h and the whole map F: cos(F_h, F), ‖F_h‖/‖F‖, share of equal signs."""

    cosine: float
    norm_ratio: float
    sign_agreement: float


class AnalysisFacts(Measured):
    """Settings and checks of the analysis of a checkpoint: `analysis.json`.

    `step` is the recorded step whose realised optimizer step was analysed, None for a plain
    gradient step of `learning_rate`. `grouped`: the updating pairs are a recorded step's groups.
    `adapters`: only the adapters are trained (LoRA). `last_layers`: only these move, with what
    follows them. `left_out` counts responses longer than the context. `sum_error` =
    ‖Σ_l F − J d‖/‖J d‖ compares the map's sums over the updating tokens with forward-mode
    derivatives along the step d, and `outside` = ‖J d − J d'‖/‖J d'‖ the step of the parameters
    that move with that of all trained ones; None where the model has no forward derivative, or all
    move.
    `unexplained`: of a recorded step, what first order at the weights before it leaves of the
    squared change of the observed answers, 1 − R²; None for a plain gradient step.
    """

    objective: str
    objective_settings: dict[str, JsonValue]
    learning_rate: float
    step: int | None
    dtype: str
    observed_answers: int
    observed_tokens: int
    updating_pairs: int
    updating_tokens: int
    grouped: bool = False
    adapters: bool = False
    last_layers: int | None = None
    left_out: int
    unexplained: float | None = None
    blocks: tuple[BlockPart, ...] = Field(description="By falling share.")
    last_layer: LastLayerFit
    sum_error: float | None
    outside: float | None = None


class ResponseTermsRow(Row):
    """The terms A and G of one response, token by token: `terms.jsonl`.

    `kind` is an observed answer's kind, or an updating answer's side. `a_norm` is ‖A‖_F, `energy`
    1 − π_y, `force_size` ‖π − e_y‖, `learning_rate` the dynamic learning rate c of the token (1 on
    observed answers), `g_norm` ‖G‖: |c|·force_size where the objective reads the answer's own
    tokens at temperature 1.
    """

    role: Literal["observed", "updating"]
    id: str
    kind: str
    tokens: list[str]
    logp: list[float]
    a_norm: list[float]
    energy: list[float]
    force_size: list[float]
    learning_rate: list[float]
    g_norm: list[float]


class KernelSizeRow(Row):
    """‖K‖_F and ‖CKC‖_F of an observed answer and an updating one, with standard errors.

    In squared logits.
    """

    label: str
    observed_id: str
    split: Split
    kind: str
    updating_id: str
    raw: float
    raw_error: float
    centred: float
    centred_error: float


class AgreementRow(Measured):
    """Rank correlation of ‖CKC‖_F over the same pairs at two checkpoints, with 95% interval.

    `ceiling` is the value that estimation noise would leave of a perfect correlation; `growth` the
    median of ‖K‖_second/‖K‖_first − 1.
    """

    first: str
    second: str
    correlation: float
    low: float
    high: float
    ceiling: float
    verdict: Literal["holds", "breaks down", "unclear"]
    growth: float


class KernelFindings(Measured):
    """Whether strongly coupled pairs stay strongly coupled: `kernel.json`.

    `adapters`: the labels of checkpoints whose K covers LoRA adapters only.
    """

    labels: tuple[str, ...]
    adapters: tuple[str, ...] = ()
    threshold: float
    rank: int
    probes: int
    agreements: tuple[AgreementRow, ...]


UNEXPLAINED = 0.05
"""Share of the squared change that first order may leave unexplained inside its radius."""


class Falls(Row):
    """Means of Δ log π over the chosen answers that fell, in nats.

    `measured`; `first`, to first order; `softmax`, with the logits moved as first order moves them,
    `z + ∂z/∂θ · d`, and the softmax exact: what it has beside `first` is curvature of the softmax
    alone (arXiv 2603.18258 speaks of negative gradients that grow along it).
    """

    answers: int
    measured: float
    first: float
    softmax: float

    @property
    def curvature(self) -> float:
        """Share of the fall that the softmax' curvature makes."""
        return (self.softmax - self.first) / self.measured


class Validity(Measured):
    """How far first order carries from a recorded step: `validity.jsonl`.

    The change is that of the step or, with `since`, of all steps from that one to this; first
    order is taken at the weights before it. `unexplained` = `Σ(measured − first)²/Σ measured²` over
    the `answers`. The radius of validity is the multiple of the change at which this share reaches
    `bound`: `predicted` by the second order, `measured` by longer and shorter steps, NaN where the
    multiples that were tried lie on one side of the bound. `softmax` is the prediction's own change
    (ΔA) as a share of the second order, `⟨part, second⟩/‖second‖²` over the answers; the rest is
    the network's (ΔK). NaN where nothing bends. `falls`: what explains the chosen answers that
    fell; None where none did, and in older files.
    """

    stage: str
    step: int
    since: int | None
    learning_rate: float
    answers: int
    bound: float
    unexplained: float
    predicted: float
    measured: float
    softmax: float
    falls: Falls | None = None


class LayerForce(Measured):
    """A recorded step's forces on the features of one layer, and what they did: `layers.jsonl`.

    Of `layers` blocks, `layer` have run: 0 is the first block's input. `force` is the mean over
    `examples` of ‖Σ ∂L/∂h‖ over an example's positions; `resultant` says whether these forces
    point in one direction (`dynolab.forces.features.Consistency`), NaN where only one example has a
    force. Over the watched answers' positions, `moved` = ‖Δh‖/‖h‖, and `unexplained`
    = `Σ‖Δh − predicted‖²/Σ‖Δh‖²` with Δh to first order at the step's midpoint.
    """

    stage: str
    step: int
    layer: int
    layers: int
    examples: int
    force: float
    resultant: float
    moved: float
    unexplained: float
