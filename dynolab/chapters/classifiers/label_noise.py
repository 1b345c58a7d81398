"""Wrong labels on purpose: a known share of a training set's labels, flipped to other classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dynolab.errors import ConfigError


@dataclass(frozen=True)
class NoisyLabels:
    """Labels as they are given to training, and which of them are wrong."""

    given: Int[Tensor, " examples"]
    true: Int[Tensor, " examples"]

    @property
    def wrong(self) -> Bool[Tensor, " examples"]:
        """Where the given label is not the true one."""
        return self.given != self.true


def check_labels(labels: Int[Tensor, " examples"], classes: int, field: str = "labels") -> None:
    """Refuses labels that no training could use.

    **Raises:** `ConfigError` for labels outside `0 … classes − 1`, and for a class that has no
    example: its logit would only ever be pushed down.
    """
    outside = labels[(labels < 0) | (labels >= classes)]
    if outside.numel():
        raise ConfigError(
            field, int(outside[0]), f"is out of range; labels must lie in 0 … {classes - 1}"
        )
    counts = torch.bincount(labels, minlength=classes)
    empty = (counts == 0).nonzero().flatten().tolist()
    if empty:
        raise ConfigError(
            field,
            f"no example of class {empty[0]}",
            "every class needs one in training; give more examples, or fewer classes",
        )


def flip_labels(
    labels: Int[Tensor, " examples"], classes: int, noise: float, generator: torch.Generator
) -> NoisyLabels:
    """Gives exactly `round(noise · N)` examples a label drawn evenly from the *other* classes.

    A draw over all K classes would leave 1/K of them right: an effective noise of r(K−1)/K.

    **Raises:** `ConfigError` for noise outside [0, 1), labels out of range, a class without
    examples.
    """
    check_noise(noise)
    check_labels(labels, classes)
    if noise and classes < 2:
        raise ConfigError("classes", classes, "a label can only be flipped to another class")
    count = round(noise * len(labels))
    chosen = torch.randperm(len(labels), generator=generator)[:count]
    shift = torch.randint(1, max(classes, 2), (count,), generator=generator)
    given = labels.clone()
    given[chosen] = (labels[chosen] + shift.to(labels.dtype)) % classes
    return NoisyLabels(given, labels)


def check_noise(noise: float, field: str = "noise") -> None:
    """**Raises:** `ConfigError` for a share of wrong labels outside [0, 1), not-a-number too."""
    if not 0 <= noise < 1:
        raise ConfigError(field, noise, "the share of wrong labels must lie in [0, 1)")
