"""The force engine against torch.func's Jacobian contraction, and against the machine's matmul.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.forces

FOLDER holds `tinystories-656k`. Prints one JSON object on its last line. Times are medians of
interleaved runs in this process, and so are ratios, whose largest less smallest ends in `_spread`;
peaks of memory are of processes of their own, above what stood before the map was begun.

- `agreement_b_vs_a`, `agreement_fp64`, `jvp_vs_difference`: relative Frobenius norms, float32
  and float64; the last in float64.
- `speedup_vs_tutorial`, `memory_vs_tutorial`: 16 observations × 16 updates of 32 response tokens
  after 32 prompt tokens on the tinystories model; `…_wide`: a random Pythia-14m shape with its
  50,304 tokens, 2 × 2 of 32. `speedup_vs_lean_tutorial` is over the same route with the output
  head called where a response stands alone (`ntk_tutorial.py`).
- `jvp_over_forward`: prediction for a probe batch over a forward of it with the same attention
  and head positions; `jvp_over_fused_forward`: over the default attention's forward.
- `contraction_gemm_fraction`: the contraction's executed FLOP/s over a large float32 matmul's.
- `pair_cost_over_gemm_bound`: time = a + b (O + U) + c O U from 4 × 4 to 32 × 32; c over the time
  that the counted operations of one pair take at the matmul's speed.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from dynolab.data.batches import collate
from dynolab.data.encode import Encoded
from dynolab.forces import PolicyFunction, central_difference, force_map
from dynolab.forces.function.rules import subspace
from dynolab.forces.map.contraction import contract
from dynolab.forces.map.costs import contraction_flops, shapes_of
from dynolab.forces.map.gram import Kernel
from dynolab.forces.map.weighted import WeightedResponse
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import SFT, SFTConfig
from dynolab.training.step_record import RecordedExample
from tests.benchmarks.figures import gather, interleaved, last_line, ratio, report, seconds
from tests.benchmarks.ntk_tutorial import tutorial
from tests.benchmarks.pythia import pythia
from tests.benchmarks.resident import peak_above_start

PROMPT, RESPONSE = 32, 32
SIZES = {"tinystories": 16, "wide": 2}
OBJECTIVE = SFT(SFTConfig())
AT_MOST = {
    "agreement_b_vs_a": 1e-5,
    "agreement_fp64": 1e-10,
    "jvp_vs_difference": 1e-6,
    "memory_vs_tutorial": 0.25,
    "memory_vs_tutorial_wide": 0.1,
    "jvp_over_forward": 3.3,
    "pair_cost_over_gemm_bound": 1.3,
}
AT_LEAST = {
    "speedup_vs_tutorial": 3.0,
    "speedup_vs_tutorial_wide": 10.0,
    "speedup_vs_lean_tutorial": 2.0,
    "speedup_vs_lean_tutorial_wide": 8.0,
    "contraction_gemm_fraction": 0.6,
}


def load(which: str) -> PreTrainedModel:
    if which == "tinystories":
        folder = Path(os.environ["DYNOLAB_TEST_DATA"])
        if (folder / "models").is_dir():
            folder = folder / "models"
        return AutoModelForCausalLM.from_pretrained(folder / "tinystories-656k").eval()
    return pythia(hidden_size=128, num_attention_heads=4, intermediate_size=512).eval()


def sequences(count: int, seed: int, vocabulary: int, response: int = RESPONSE) -> list[Encoded]:
    """Random tokens, drawn as words are: by falling frequency."""
    random = np.random.default_rng(seed)
    ranks = random.zipf(1.2, size=(count, 4 * (PROMPT + response)))
    rows = [row[row < vocabulary - 3][: PROMPT + response] + 2 for row in ranks]
    return [Encoded(tuple(int(token) for token in row), PROMPT) for row in rows]


def examples(responses: list[Encoded]) -> list[RecordedExample]:
    return [RecordedExample(id=str(n), chosen=response) for n, response in enumerate(responses)]


def ours(
    policy: PolicyFunction, observed: list[Encoded], updating: list[Encoded], **more
) -> Tensor:  # type: ignore[no-untyped-def]
    result = force_map(policy, observed, examples(updating), OBJECTIVE, route="both_sides", **more)
    return torch.from_numpy(result.force)


def gemm_speed() -> float:
    """FLOP/s of a large float32 product."""
    one, other = torch.randn(4096, 4096), torch.randn(4096, 4096)
    best = min(seconds(lambda: one @ other) for _ in range(5))
    return 2 * 4096**3 / best


def agreement() -> dict[str, float]:
    model = load("tinystories")
    observed, updating = (sequences(2, seed, 2048, 8) for seed in (0, 1))

    def gap(policy: PolicyFunction) -> float:
        both, columns = (
            force_map(policy, observed, examples(updating), OBJECTIVE, route=route).force
            for route in ("both_sides", "columns")
        )
        return float(np.linalg.norm(both - columns) / np.linalg.norm(columns))

    exact = PolicyFunction(model, torch.float64)
    batch = collate(observed, 0)
    generator = torch.Generator().manual_seed(0)
    d = {n: torch.randn(w.shape, generator=generator) * w.std() for n, w in exact.weights.items()}
    along = exact.change_along(exact.weights, [d], batch)[0]
    difference = central_difference(exact, exact.weights, d, batch)
    return {
        "agreement_b_vs_a": gap(PolicyFunction(model)),
        "agreement_fp64": gap(exact),
        "jvp_vs_difference": float((along - difference).norm() / difference.norm()),
    }


def against_tutorial(which: str, repeats: int) -> dict[str, float]:
    model = load(which)
    policy = PolicyFunction(model)
    count, vocabulary = SIZES[which], model.config.vocab_size
    observed, updating = (sequences(count, seed, vocabulary) for seed in (0, 1))
    truth = tutorial(model, observed, updating)
    made = ours(policy, observed, updating)
    suffix = "" if which == "tinystories" else "_wide"
    fast, slow, lean = interleaved(
        lambda: ours(policy, observed, updating, memory_bytes=MEMORY[which]),
        lambda: tutorial(model, observed, updating),
        lambda: tutorial(model, observed, updating, lean=True),
        repeats=repeats,
    )
    peaks = {who: peak_of(which, who) for who in ("ours", "tutorial")}
    return {
        f"agreement_with_tutorial{suffix}": float((made - truth).norm() / truth.norm()),
        f"seconds{suffix}": statistics.median(fast),
        f"seconds_tutorial{suffix}": statistics.median(slow),
        **ratio(f"speedup_vs_tutorial{suffix}", slow, fast),
        **ratio(f"speedup_vs_lean_tutorial{suffix}", lean, fast),
        f"peak_mb{suffix}": peaks["ours"] / 2**20,
        f"peak_mb_tutorial{suffix}": peaks["tutorial"] / 2**20,
        f"memory_vs_tutorial{suffix}": peaks["ours"] / peaks["tutorial"],
    }


def peak_of(which: str, who: str) -> float:
    return float(last_line("forces", "--peak", which, who))


def print_peak(which: str, who: str) -> None:
    """Most bytes resident above those before the map."""
    model = load(which)
    policy = PolicyFunction(model)
    count, vocabulary = SIZES[which], model.config.vocab_size
    observed, updating = (sequences(count, seed, vocabulary) for seed in (0, 1))
    routes = {
        "ours": lambda: ours(policy, observed, updating, memory_bytes=MEMORY[which]),
        "tutorial": lambda: tutorial(model, observed, updating),
    }
    print(peak_above_start(routes[who]))


MEMORY = {"tinystories": 2**30, "wide": 2**29}


def jvp_cost(repeats: int) -> dict[str, float]:
    model = load("tinystories")
    policy = PolicyFunction(model)
    batch = collate(sequences(32, 2, 2048), 0)
    generator = torch.Generator().manual_seed(0)
    d = {n: torch.randn(w.shape, generator=generator) for n, w in policy.weights.items()}
    plain = ResponseLogits(model)

    @torch.no_grad()
    def forward() -> Tensor:
        with policy.differentiable():
            return token_logps(plain(batch), batch)

    @torch.no_grad()
    def fused() -> Tensor:
        return token_logps(plain(batch), batch)

    predict, forwards, default = interleaved(
        lambda: policy.change_along(policy.weights, [d], batch), forward, fused, repeats=repeats
    )
    return {
        **ratio("jvp_over_forward", predict, forwards),
        **ratio("jvp_over_fused_forward", predict, default),
    }


def contraction_speed(repeats: int) -> dict[str, float]:
    """Contraction alone, and the cost of a further pair from a fit of whole maps."""
    policy = PolicyFunction(load("tinystories"))
    observed, updating = (sequences(32, seed, 2048) for seed in (0, 1))
    kernel = Kernel.build(policy, None, subspace(policy), None, observed[0])
    factors = [
        kernel.factors([WeightedResponse.own(sequence, policy) for sequence in side[:16]])
        for side in (observed, updating)
    ]
    out = torch.zeros(16 * RESPONSE, 16 * RESPONSE)

    def product() -> None:
        contract(*factors, lambda name, use: out, scale=None, workspace=2**28)

    gemm = gemm_speed()
    took = statistics.median(*interleaved(product, repeats=repeats))
    gemm = max(gemm, gemm_speed())
    executed = contraction_flops(kernel.rules, *(shapes_of(s[:16]) for s in (observed, updating)))
    factors.clear()

    sides = [(4, 4), (4, 32), (8, 8), (32, 4), (16, 16), (16, 32), (32, 16), (32, 32)]
    rounds = interleaved(
        *(
            lambda o=o, u=u: ours(policy, observed[:o], updating[:u], memory_bytes=2**32)
            for o, u in sides
        ),
        repeats=repeats,
    )
    times = [statistics.median(each) for each in rounds]
    design = np.array([[1, o + u, o * u] for o, u in sides])
    # Relative residuals: a millisecond weighs more in a small map.
    weight = 1 / np.array(times)
    a, b, c = np.linalg.lstsq(design * weight[:, None], np.ones(len(sides)), rcond=None)[0]

    def count(o: int, u: int) -> int:
        return contraction_flops(kernel.rules, shapes_of(observed[:o]), shapes_of(updating[:u]))

    # The part of the count that grows with the pairs alone.
    pair = (count(32, 32) - count(16, 32) - count(32, 16) + count(16, 16)) / 256
    gemm = max(gemm, gemm_speed())
    return {
        "gemm_gflops": gemm / 1e9,
        "contraction_gflops": executed / took / 1e9,
        "contraction_gemm_fraction": executed / took / gemm,
        "fit_fixed_s": float(a),
        "fit_sequence_s": float(b),
        "fit_pair_s": float(c),
        "pair_cost_over_gemm_bound": float(c) / (pair / gemm),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", nargs=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(*arguments.peak)
        return
    parts: list[Callable[[], dict[str, float]]] = [
        agreement,
        lambda: jvp_cost(4 * arguments.repeats),
        lambda: contraction_speed(arguments.repeats),
        lambda: against_tutorial("tinystories", arguments.repeats),
        lambda: against_tutorial("wide", arguments.repeats),
    ]
    figures = gather(parts, threads=float(torch.get_num_threads()))
    report(figures, at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
