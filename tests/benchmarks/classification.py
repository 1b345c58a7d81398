"""What exact kernels of classifiers cost beside torch.func's NTK tutorial, and what joint training
gains.

    python -m tests.benchmarks.classification

Prints one JSON object on its last line. Times are medians of interleaved runs in this process, and
so are ratios, whose largest less smallest ends in `_spread`; peaks of memory are of processes of
their own, above what stood before.

- `exact_kernel_speedup`, `exact_kernel_memory`: the V × V kernels of all 64 × 64 pairs of digits
  (8 × 8 pixels) under LeNet, against the faster of the tutorial's two routes, Jacobian contraction
  and NTK-vector products; `…_mnist`: the same of 28 × 28 pixels. `exact_kernel_agreement`: relative
  Frobenius norm of the difference to Jacobian contraction, float32.
- `mapping_sweep_speedup`: all 256 mappings of 4 objects to 4 messages with 8 seeds, 25 steps each,
  trained one after another, against all 2,048 networks together; `mapping_sweep_agreement`: the
  largest difference of their losses, in nats.
- `filter_kd_gain`, `…_low`, `…_high`: accuracy of Filter-KD less that of one-hot labels at 40%
  noise on digits, mean and 95% t-interval over five seeds, by the settings of the built-in study
  (reported, without a bar); `seeds_speedup`: five seeds trained one after another, against all
  together.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

from dynolab.chapters.classifiers.forces import classifier_kernel
from dynolab.chapters.images.images import ImageConfig, load_images
from models.vision import build_classifier
from tests.benchmarks.figures import gather, interleaved, last_line, ratio, report
from tests.benchmarks.mapping_sweep import one_after_another, together
from tests.benchmarks.resident import peak_above_start
from tests.benchmarks.supervision import filter_kd

IMAGES, CLASSES = 64, 10
AT_LEAST = {"mapping_sweep_speedup": 10.0, "exact_kernel_speedup": 1.5}
AT_MOST = {"exact_kernel_memory": 0.25, "exact_kernel_agreement": 1e-5}
SIDES = {"": 8, "_mnist": 28}

Figures = dict[str, float]


def digits(side: int) -> tuple[nn.Module, Tensor, Tensor]:
    """LeNet, and two sides of digits; for other sizes these are enlarged."""
    splits = load_images(ImageConfig())
    left, right = (
        nn.functional.interpolate(images.pixels[:IMAGES], size=(side, side), mode="bilinear")
        for images in (splits.test, splits.train)
    )
    return build_classifier("lenet", (1, side, side), CLASSES, seed=0), left, right


def tutorial(model: nn.Module) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """The routes of torch.func's tutorial *Neural Tangent Kernels*, kernels in full.

    Jacobian contraction: per-sample Jacobians by `vmap(jacrev)`, then one einsum a parameter.
    NTK-vector products: for every pair the columns of `K v` by a VJP and a JVP.
    """
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def logits(w: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, w, (x[None],))[0]

    def jacobians(x: Tensor) -> list[Tensor]:
        return [j.flatten(2) for j in vmap(jacrev(logits), (None, 0))(weights, x).values()]

    def contraction(left: Tensor, right: Tensor) -> Tensor:
        parts = [
            torch.einsum("naf,mbf->nmab", jacobian, other)
            for jacobian, other in zip(jacobians(left), jacobians(right), strict=True)
        ]
        return torch.stack(parts).sum(0)

    def products(left: Tensor, right: Tensor) -> Tensor:
        def pair(x: Tensor, y: Tensor) -> Tensor:
            _, back = vjp(lambda w: logits(w, y), weights)

            def column(v: Tensor) -> Tensor:
                return jvp(lambda w: logits(w, x), (weights,), back(v))[1]

            return vmap(column, out_dims=1)(torch.eye(CLASSES))

        return vmap(vmap(pair, (None, 0)), (0, None))(left, right)

    return {"contraction": contraction, "products": products}


PRODUCT_IMAGES = 8
"""NTK-vector products of so many images a side are timed, and counted up: all take a minute."""


def exact_kernel(repeats: int) -> Figures:
    """Seconds, memory and agreement of exact kernels."""
    figures: Figures = {}
    for suffix, side in SIDES.items():
        model, left, right = digits(side)
        routes = tutorial(model)

        def ours(model: nn.Module = model, left: Tensor = left, right: Tensor = right) -> Tensor:
            return classifier_kernel(model, left, right, CLASSES)

        few = left[:PRODUCT_IMAGES], right[:PRODUCT_IMAGES]
        truth = routes["contraction"](left, right)
        agreement = float((ours() - truth).norm() / truth.norm())
        fast, contraction, products = interleaved(
            ours,
            lambda r=routes, a=left, b=right: r["contraction"](a, b),
            lambda r=routes, p=few: r["products"](*p),
            repeats=repeats,
        )
        products = [(IMAGES / PRODUCT_IMAGES) ** 2 * time for time in products]
        faster = min(contraction, products, key=statistics.median)
        peaks = {who: peak_of(who, side) for who in ("ours", "tutorial")}
        figures |= {
            f"exact_kernel_agreement{suffix}": agreement,
            f"exact_kernel_seconds{suffix}": statistics.median(fast),
            f"tutorial_contraction_seconds{suffix}": statistics.median(contraction),
            f"tutorial_products_seconds{suffix}": statistics.median(products),
            **ratio(f"exact_kernel_speedup{suffix}", faster, fast),
            f"exact_kernel_mb{suffix}": peaks["ours"] / 2**20,
            f"tutorial_mb{suffix}": peaks["tutorial"] / 2**20,
            f"exact_kernel_memory{suffix}": peaks["ours"] / peaks["tutorial"],
        }
    return figures


def peak_of(who: str, side: int) -> float:
    return float(last_line("classification", "--peak", who, str(side)))


def print_peak(who: str, side: int) -> None:
    """Most bytes resident above those before the kernels; of the tutorial, its faster route."""
    model, left, right = digits(side)
    # What the first call of an operation loads is no part of it.
    classifier_kernel(model, left[:2], right[:2], CLASSES)
    contraction = tutorial(model)["contraction"]
    contraction(left[:2], right[:2])
    work = {
        "ours": lambda: classifier_kernel(model, left, right, CLASSES),
        "tutorial": lambda: contraction(left, right),
    }[who]
    print(peak_above_start(work))


def mapping_sweep(repeats: int) -> Figures:
    """Seconds of both ways to train all mappings, and that they come to the same."""
    apart = float((together() - one_after_another()).abs().max())
    fast, slow = interleaved(together, one_after_another, repeats=repeats)
    return {
        "mapping_sweep_seconds": statistics.median(fast),
        "mapping_loop_seconds": statistics.median(slow),
        **ratio("mapping_sweep_speedup", slow, fast),
        "mapping_sweep_agreement": apart,
    }


PARTS: tuple[Callable[[int], Figures], ...] = (exact_kernel, mapping_sweep, filter_kd)
"""What is measured, one after the other; each takes the number of repeats."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", nargs=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(arguments.peak[0], int(arguments.peak[1]))
        return
    parts = [partial(part, arguments.repeats) for part in PARTS]
    figures = gather(parts, threads=float(torch.get_num_threads()))
    report(figures, at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
