"""The rows of an audit: the predicted effect of each preference pair, and how well it held."""

from __future__ import annotations

import hashlib
import math
from typing import Literal

from pydantic import Field

from dynolab.data.rows import Row, Split
from dynolab.results.forces import Measured

Band = Literal["below", "inside", "above"]
"""Where the ratio of a loss's weights c₊/c₋ lies to the band in which a step on a pair keeps its
chosen answer and lowers its rejected one (Chen et al., arXiv 2604.18239):

    ⟨g₊, g₋⟩ / ‖g₊‖² ≤ c₊/c₋ ≤ ‖g₋‖² / ⟨g₊, g₋⟩

Below it the chosen answer falls, above it the rejected one rises, too; if the gradients do not
point the same way, all ratios are inside.
"""


class PairAudit(Row):
    """A preference pair before training on it: `audit.jsonl`.

    `force` = `pull_up` + `push_down` is the first-order change of the pair's own chosen answer,
    Δ log π(y⁺) in nats, under a gradient step of learning rate one on the pair alone: through its
    chosen tokens and through its rejected ones. `from_all` is the change of the same answer under
    a step on all training pairs, `on_all` the mean change of all training pairs' chosen answers
    under the step on this pair. `rejected_force` is the change of the pair's rejected answer under
    the step on it alone, and `band` follows from both; None in older results.

    `ches` and `ches_per_token` are CHES and its length-normalised form, `likelihood_gap` is
    log π(y⁺) − log π(y⁻) in nats, `edit_distance` lies between 0, equal answers, and 1.
    """

    pair_id: str
    split: Split
    chosen_tokens: int
    rejected_tokens: int
    chosen_logp: float
    pull_up: float
    push_down: float
    force: float
    from_all: float
    on_all: float
    ches: float
    ches_per_token: float
    likelihood_gap: float
    edit_distance: float
    rejected_force: float | None = None
    band: Band | None = None

    @property
    def chosen_logp_per_token(self) -> float:
        """log π(y⁺) over its tokens, in nats."""
        return self.chosen_logp / self.chosen_tokens

    @property
    def random(self) -> float:
        """A number in [0, 1) that says nothing: of the pair's id, so that it stays the same."""
        return int(hashlib.sha256(self.pair_id.encode()).hexdigest()[:8], 16) / 2**32


class ChosenChange(Row):
    """Δ log π of a pair's chosen answer over a training, in nats: `changes.jsonl`."""

    pair_id: str
    split: Split
    change: float


class Foresight(Measured):
    """How well a ranking of pairs before training predicted whose chosen answer falls.

    `spearman`: rank correlation of the ranking's risk with the fall −Δ log π(y⁺); `auc`: share of
    (fallen, not fallen) couples that the risk puts in order, NaN with fewer than ten of either.
    `partial`: rank correlation of the risk with the fall, given the risk of the ranking `given`:
    the best that takes no gradient, or, for those, the best force. All with 95% bootstrap intervals
    over pairs; NaN where nothing differs. `fallen` of `pairs` chosen answers fell.

    `below` pairs lie below the band (`Band`): their own step lowers their chosen answer. `right`:
    the share of pairs that the ranking calls rightly, if it calls the first `below` pairs falling
    and all others not; for `force` these are the pairs below the band. NaN in older results.
    """

    ranking: str
    split: Split
    pairs: int
    fallen: int
    spearman: float
    spearman_low: float
    spearman_high: float
    auc: float
    auc_low: float
    auc_high: float
    given: str
    partial: float
    partial_low: float
    partial_high: float
    below: int = 0
    right: float = math.nan
    right_low: float = math.nan
    right_high: float = math.nan


class FilteredPairs(Row):
    """Which pairs a filter left out of training: `filter.json`, the worst first."""

    by: str
    kept: int
    dropped: tuple[str, ...] = Field(description="Ids of the pairs.")
