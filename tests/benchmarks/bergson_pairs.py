"""Bergson's scores of pairs that DPO trains on, of its scores of their responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from dynolab.data.encode import Encoded, EncodedExample
from tasks.shared.policies import load_policy
from tests.benchmarks.bergson_scores import scores


@torch.no_grad()
def logps(model: Path, sequences: Sequence[Encoded]) -> Float[torch.Tensor, " sequences"]:
    """log π of each response."""
    policy = load_policy(model)
    batches = (policy.batch(sequences[at : at + 64]) for at in range(0, len(sequences), 64))
    return torch.cat([batch.sequence_sum(policy.logps({}, batch)) for batch in batches]).double()


def pair_scores(
    bergson: Path,
    models: Mapping[str, Path],
    beta: float,
    pairs: Sequence[EncodedExample],
    answers: Sequence[Encoded],
) -> tuple[dict[str, Float[np.ndarray, "pairs answers"]], dict[str, float]]:
    """Scores of DPO's pairs by method, and CPU seconds by `bergson METHOD`.

    **Arguments:** `models`: before and after the training.
    """
    responses = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs if pair.rejected]
    queries = {"single": answers, "chosen": responses[: len(pairs)]}
    raw, took = scores(bergson, models, responses, queries)
    # DPO weighs both responses of a pair by β σ(−β margin).
    up, down = (logps(models["after"], responses) - logps(models["before"], responses)).chunk(2)
    weights = {"before": torch.full_like(up, 0.5), "after": torch.sigmoid(-beta * (up - down))}
    of_pairs: dict[str, Float[np.ndarray, "pairs answers"]] = {}
    costs: dict[str, float] = {}
    for name, each in raw.items():
        method, model = name.split("-")
        chosen, rejected = np.split(each, 2)
        own = weights[model].numpy()[:, None] * (chosen - rejected)
        of_pairs[method] = of_pairs.get(method, 0.0) + own
        costs[f"bergson {method}"] = costs.get(f"bergson {method}", 0.0) + took[name]
    return of_pairs, costs
