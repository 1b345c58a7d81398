"""Families of transformers at toy size: what is measured of them, against plain lines of torch.

    python -m tests.benchmarks.families

Prints one JSON object on its last line. Every family has random weights, saved to a folder and
loaded from there as a study loads them: in float32 as it is trained and probed, in float64 where
forces are measured.

- `families_tried`: families built; `families_exact`: those whose every layout and force map
  agrees; `families_refused_clearly`: those that a `ConfigError` refuses; `silently_wrong`: those
  with a wrong number or another error.
- `logp_error_max`: nats; log-probabilities of every layout in use (alone, padded, packed)
  against `model(input_ids).logits`.
- `force_error_max`: each side's part of a DPO step, summed over its tokens, against finite
  differences; in units of the differences' largest.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from dynolab.data.batches import TokenBatch, collate
from dynolab.data.encode import Encoded
from dynolab.data.packing import share_prompts
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, force_map
from dynolab.forces.function.views import dtype_preserving
from dynolab.likelihood.token_logps import ResponseLogits, packing_width, token_logps
from dynolab.objectives import DPO, DPOConfig
from dynolab.training.step_record import RecordedExample
from models.language import load_language_model
from tests.benchmarks.figures import report
from tests.benchmarks.models import FAMILIES, build, random_tokens

BETA = 0.1
LOGP_BOUND, FORCE_BOUND = 1e-5, 1e-4
AT_LEAST = {"families_tried": 24, "families_exact": 18}
AT_MOST = {
    "silently_wrong": 0,
    "logp_error_max": LOGP_BOUND,
    "force_error_max": FORCE_BOUND,
}


@dataclass
class Finding:
    """What came of one family: errors by layout and of the force map, and who refused what."""

    logp: dict[str, float] = field(default_factory=dict)
    force: float = 0.0
    refused: str = ""
    foreign: str = ""

    @property
    def wrong(self) -> bool:
        """Whether a number is wrong, or something else than a `ConfigError` came up."""
        exact = all(error <= LOGP_BOUND for error in self.logp.values())
        return bool(self.foreign) or not exact or not self.force <= FORCE_BOUND


PROMPT = random_tokens(5, 1)
CHOSEN, REJECTED = (Encoded((*PROMPT, *random_tokens(n, seed)), 5) for n, seed in ((4, 2), (3, 3)))
OBSERVED = Encoded(random_tokens(7, 4), 3)
REFERENCE = ([-3.0, -4.1, -3.7, -3.9], [-3.3, -4.0, -3.6])


def plain_logps(model: PreTrainedModel, sequence: Encoded) -> Tensor:
    """The model's own forward of one sequence, nothing of dynolab's."""
    ids = torch.tensor([sequence.ids])
    logits = model(input_ids=ids, use_cache=False).logits[0, sequence.prompt_length - 1 : -1]
    response = ids[0, sequence.prompt_length :, None]
    return logits.log_softmax(-1).gather(-1, response)[:, 0]


def layouts(logits: ResponseLogits, sequences: Sequence[Encoded]) -> dict[str, list[Tensor]]:
    """Log-probabilities of the sequences by every layout in use."""

    def read(batch: TokenBatch) -> list[Tensor]:
        lengths = batch.sequence_length.tolist()
        return list(logits(batch, token_logps).split(lengths))

    logps = {
        "alone": [read(collate([sequence], 0))[0] for sequence in sequences],
        "padded": read(collate(sequences, 0)),
    }
    if packing_width(logits) is not None:
        logps["packed"] = read(share_prompts(collate(sequences, 0), [[0, 1], [2]]))
    return logps


def dpo_step_by_differences(model: PreTrainedModel) -> dict[str, Tensor]:
    """Change of the observed tokens' log π, by unit of learning rate, along each side's part of
    `−∇ −log σ(β (log π(y⁺) − log π(y⁻) − reference))`."""
    chosen, rejected = (plain_logps(model, side).sum() for side in (CHOSEN, REJECTED))
    margin = chosen - rejected - (sum(REFERENCE[0]) - sum(REFERENCE[1]))
    force = BETA * torch.sigmoid(-BETA * margin.detach())
    weights = [p for p in model.parameters() if p.requires_grad]
    ascents = {
        "chosen": torch.autograd.grad(
            force * chosen, weights, retain_graph=True, materialize_grads=True
        ),
        "rejected": torch.autograd.grad(-force * rejected, weights, materialize_grads=True),
    }
    return {side: _along(model, weights, ascent) for side, ascent in ascents.items()}


@torch.no_grad()
def _along(model: PreTrainedModel, weights: Sequence[Tensor], ascent: Sequence[Tensor]) -> Tensor:
    """Derivative of the observed tokens' log π, with an error of fourth order.

    Of three steps the one at which two differences agree best: a long one may turn a unit of a ReLU
    off or choose another expert, in a short one rounding shows.
    """
    size = float(torch.stack([g.norm() for g in ascent]).norm())

    def moved(by: float) -> Tensor:
        for w, g in zip(weights, ascent, strict=True):
            w.add_(g, alpha=by)
        logps = plain_logps(model, OBSERVED)
        for w, g in zip(weights, ascent, strict=True):
            w.add_(g, alpha=-by)
        return logps

    steps = [step / size for step in (1e-3, 1e-5, 1e-7)]
    tries = [[(moved(by) - moved(-by)) / (2 * by) for by in (h, 2 * h)] for h in steps]
    near, far = min(tries, key=lambda pair: float((pair[0] - pair[1]).abs().max()))
    return (4 * near - far) / 3


def try_family(name: str) -> Finding:
    """Measures one family."""
    finding = Finding()
    try:
        measure_family(name, finding)
    except ConfigError as error:
        finding.refused = str(error)
    except Exception as error:
        finding.foreign = f"{type(error).__name__}: {error}"[:200]
    return finding


def measure_family(name: str, finding: Finding) -> None:
    """Writes what is measured into a finding, as far as nothing is refused."""
    plain = build(name)
    with tempfile.TemporaryDirectory() as folder:  # as a study gets it
        plain.save_pretrained(folder)
        model = load_language_model(folder)
    with torch.no_grad():
        sequences = [CHOSEN, REJECTED, OBSERVED]
        truth = torch.cat([plain_logps(plain, sequence) for sequence in sequences])
        for layout, logps in layouts(ResponseLogits(model), sequences).items():
            finding.logp[layout] = float((torch.cat(logps) - truth).abs().max())
    example = RecordedExample(
        id="pair",
        chosen=CHOSEN,
        rejected=REJECTED,
        chosen_reference=REFERENCE[0],
        rejected_reference=REFERENCE[1],
    )
    policy, objective = PolicyFunction(model, torch.float64), DPO(DPOConfig(beta=BETA))
    pushes = force_map(policy, [OBSERVED], [example], objective, update=1.0)
    # Norms and softmax of transformers are float32 in a float64 model, too coarse for differences.
    exact = build(name).double()
    if exact._can_set_experts_implementation():  # float64 has no other kernel for experts
        exact.set_experts_implementation("eager")
    with dtype_preserving(exact):
        sides = dpo_step_by_differences(exact)
    parts = zip(torch.tensor(pushes.force).split([4, 3], dim=1), sides.values(), strict=True)
    finding.force = max(
        float((part.sum(1) - side).abs().max() / side.abs().max()) for part, side in parts
    )


def figures(findings: dict[str, Finding]) -> dict[str, Any]:
    """The benchmark's keys."""
    wrong = [name for name, finding in findings.items() if finding.wrong]
    refused = [name for name, finding in findings.items() if finding.refused and not finding.wrong]
    return {
        "families_tried": len(findings),
        "families_exact": len(findings) - len(wrong) - len(refused),
        "families_refused_clearly": len(refused),
        "silently_wrong": len(wrong),
        "logp_error_max": max(e for finding in findings.values() for e in finding.logp.values()),
        "force_error_max": max(finding.force for finding in findings.values()),
    }


def main() -> None:
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    findings = {}
    for name in sys.argv[1:] or FAMILIES:
        findings[name] = finding = try_family(name)
        print(json.dumps({"family": name, **vars(finding)}), flush=True)
    report(figures(findings), at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
