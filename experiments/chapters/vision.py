"""Classifiers: LeNet, a perceptron, a small transformer and ResNet-18, each features and a head.

All are functions of their weights and of one image at a time: they have no dropout and no batch
norm, whose output for one image depends on the others. So `torch.func` works on them unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from dynolab.errors import ConfigError

ClassifierName = Literal["lenet", "mlp", "transformer", "resnet18"]

_MLP_WIDTH = 128
_TOKEN_WIDTH, _HEADS, _BLOCKS, _MOST_TOKENS = 32, 4, 2, 64
_GROUPS = 32


class Classifier(nn.Module):
    """Images to logits: `head(features(x))`."""

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)

    def features(self, x: Float[Tensor, "images ..."]) -> Float[Tensor, "images width"]:
        """The head's input."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Float[Tensor, "images ..."]) -> Float[Tensor, "images classes"]:
        """Logits."""
        logits: Tensor = self.head(self.features(x))
        return logits


def build_classifier(
    name: ClassifierName,
    image_shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    device: torch.device | str = "cpu",
) -> Classifier:
    """A classifier with seeded random weights; the caller's random state is left as it was.

    - `lenet`: LeCun et al. (1998) with ReLU, max pooling and 84 features. He initialisation
      (arXiv 1502.01852) keeps plain SGD from stalling at the start; the second convolution is
      padded if the image is too small for it, as 8 × 8 digits are.
    - `mlp`: two hidden layers of 128 units, for any image shape.
    - `transformer`: patches, fixed sine positions, two pre-norm blocks of width 32 with four heads
      (Dosovitskiy et al., arXiv 2010.11929, as simplified by Beyer et al., arXiv 2205.01580);
      features are all tokens concatenated, because plain SGD learns slowly from their mean.
    - `resnet18`: the form for 32 × 32 images (3 × 3 stem, no pooling; He et al., arXiv 1512.03385),
      with group norm in place of batch norm (Wu & He, arXiv 1803.08494).

    **Arguments:** `image_shape`: channels, height, width; for `mlp`, any shape.

    **Raises:** `ConfigError` for an image that the network cannot take.
    """
    build = _BUILDERS.get(name)
    if build is None:
        raise ConfigError("model", name, f"choose one of {', '.join(_BUILDERS)}")
    if name != "mlp" and (len(image_shape) != 3 or min(image_shape[1:]) < 8):
        raise ConfigError(
            "image_shape",
            image_shape,
            f"{name} takes channels × height × width of at least 8 × 8; give larger images, or mlp",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(image_shape, classes).eval().to(device)


def _lenet(image_shape: tuple[int, ...], classes: int) -> Classifier:
    channels, *sides = image_shape
    padding = 2 if min(sides) < 20 else 0
    ends = [((side // 2) - 4 + 2 * padding) // 2 for side in sides]
    body = nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * math.prod(ends), 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    for name, parameter in body.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
    return Classifier(body, 84, classes)


def _mlp(image_shape: tuple[int, ...], classes: int) -> Classifier:
    return Classifier(
        nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(image_shape), _MLP_WIDTH),
            nn.ReLU(),
            nn.Linear(_MLP_WIDTH, _MLP_WIDTH),
            nn.ReLU(),
        ),
        _MLP_WIDTH,
        classes,
    )


def _transformer(image_shape: tuple[int, ...], classes: int) -> Classifier:
    body = PatchTransformer(image_shape)
    return Classifier(body, body.width, classes)


class PatchTransformer(nn.Module):
    """Pre-norm transformer on image patches; features are its tokens concatenated, `width` long."""

    def __init__(self, image_shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, *sides = image_shape
        # The smallest power of two that leaves at most _MOST_TOKENS patches.
        size = 2
        while math.prod(side // size for side in sides) > _MOST_TOKENS:
            size *= 2
        self.width = math.prod(side // size for side in sides) * _TOKEN_WIDTH
        self.patches = nn.Conv2d(channels, _TOKEN_WIDTH, size, stride=size)
        nn.init.kaiming_normal_(self.patches.weight, nonlinearity="relu")
        self.blocks = nn.Sequential(*(Block(_TOKEN_WIDTH, _HEADS) for _ in range(_BLOCKS)))
        self.norm = nn.LayerNorm(_TOKEN_WIDTH)

    def forward(self, x: Float[Tensor, "images channels height width"]) -> Tensor:
        """Features of the images."""
        patches = self.patches(x)
        width, rows, columns = patches.shape[1:]
        tokens = patches.flatten(2).transpose(1, 2) + sine_places(rows, columns, width).to(patches)
        features: Tensor = self.norm(self.blocks(tokens)).flatten(1)
        return features


def sine_places(rows: int, columns: int, width: int) -> Float[Tensor, "tokens width"]:
    """Position encodings: sines and cosines of a token's row and column, a quarter of the width
    each, at frequencies from 1 down to 1/10,000."""
    frequencies = 10_000.0 ** -torch.linspace(0, 1, width // 4)
    at = torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(columns)))
    angles = (at[:, :, None] * frequencies).flatten(1)
    return torch.cat([angles.sin(), angles.cos()], 1)


class Block(nn.Module):
    """Pre-norm transformer block: attention and a perceptron, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.queries_keys_values = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Float[Tensor, "images tokens width"]) -> Tensor:
        """The block's output. Attention is written out: fused kernels lack forward mode."""
        split = self.queries_keys_values(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = split.movedim(2, 0).transpose(2, 3)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        output: Tensor = x + self.mlp(x)
        return output


def _resnet18(image_shape: tuple[int, ...], classes: int) -> Classifier:
    stem = [
        nn.Conv2d(image_shape[0], 64, 3, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
    ]
    blocks, before = [], 64
    for width in (64, 128, 256, 512):
        blocks += [Residual(before, width), Residual(width, width)]
        before = width
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Classifier(nn.Sequential(*stem, *blocks, *end), 512, classes)


class Residual(nn.Module):
    """Two normed convolutions with a shortcut; a block that widens also halves the image."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = 1 if before == width else 2
        self.convolutions = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.GroupNorm(_GROUPS, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if before != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.GroupNorm(_GROUPS, width)
            )

    def forward(self, x: Float[Tensor, "images channels height width"]) -> Tensor:
        """The block's output."""
        return F.relu(self.convolutions(x) + self.shortcut(x))


_BUILDERS: dict[str, Callable[[tuple[int, ...], int], Classifier]] = {
    "lenet": _lenet,
    "mlp": _mlp,
    "transformer": _transformer,
    "resnet18": _resnet18,
}
