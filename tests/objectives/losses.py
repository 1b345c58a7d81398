"""Losses of one's own that tests name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dynolab.objectives import Answers


def margin(chosen: Answers, rejected: Answers, beta: float = 0.5) -> Tensor:
    """The logistic loss of the log-ratios' difference, less for a long rejected answer."""
    gap = beta * (chosen.ratio - rejected.ratio)
    return -F.logsigmoid(gap) + 0.1 * rejected.mean


def hinge(chosen: Answers, rejected: Answers) -> Tensor:
    return torch.relu(3 - chosen.logp + rejected.logp)


def flat_where_wrong(chosen: Answers, rejected: Answers) -> Tensor:
    return torch.relu(chosen.logp - rejected.logp)


def constant(chosen: Answers, rejected: Answers) -> Tensor:
    return torch.ones(len(chosen.logp), dtype=torch.float64)


def not_a_number(chosen: Answers, rejected: Answers) -> Tensor:
    return torch.log(chosen.logp)


def one_number(chosen: Answers, rejected: Answers) -> Tensor:
    return margin(chosen, rejected).mean()


def across_pairs(chosen: Answers, rejected: Answers) -> Tensor:
    return chosen.logp - chosen.logp.mean()


def text(chosen: Answers, rejected: Answers) -> str:
    return "loss"
