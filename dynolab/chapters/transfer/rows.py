"""The rows of the comparison of task heads."""

from __future__ import annotations

from typing import Literal

from dynolab.data.rows import Row

Strategy = Literal["linear", "smoothed", "two_layer", "reinitialised"]
"""How the head is prepared.

`linear`: one layer, probed with hard labels; `smoothed`: probed with smoothed ones; `two_layer`:
a head with one hidden layer; `reinitialised`: one layer, on features whose last layer is drawn
anew. All are finetuned with hard labels.
"""


class TransferRow(Row):
    """One network, probed for `tau` epochs and finetuned: `transfer.jsonl`.

    Before finetuning, on its examples: `energy` E‖e_y − p‖₂; `consistency`, the mean cosine of the
    feature forces within a class; `mismatch`, the share of the forces' squared size that classes
    do not share; `probe_accuracy`. Change by finetuning: `distance`, `cosine`, `dot_product` and
    `norm` compare the features with those before; `followed` is the cosine of their displacement
    with the first force. After it: `accuracy` on the second task's test inputs, `elsewhere` on
    changed ones.
    """

    task: str
    strategy: Strategy
    tau: int
    seed: int
    energy: float
    consistency: float
    mismatch: float
    probe_accuracy: float
    distance: float
    cosine: float
    dot_product: float
    norm: float
    followed: float
    accuracy: float
    elsewhere: dict[str, float]
