"""The force engine against torch.func's Jacobian contraction.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.forces

FOLDER holds `models/tinystories-656k`. Prints one JSON object on its last line. Times are medians
of interleaved runs in this process, and so are ratios, whose largest less smallest ends in
`_spread`; peaks of memory are of processes of their own, above what stood before the map was begun.

- `agreement_with_tutorial`: relative Frobenius norm of the difference.
- `speedup_vs_tutorial`, `memory_vs_tutorial`: 16 observations × 16 updates of 32 response tokens
  after 32 prompt tokens on the tinystories model; `…_wide`: a random Pythia-14m shape with its
  50,304 tokens, 2 × 2 of 32.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, PreTrainedModel

from dynolab.data.encode import Encoded
from dynolab.forces import PolicyFunction, force_map
from dynolab.objectives import SFT, SFTConfig
from dynolab.training.step_record import RecordedExample
from tests.benchmarks.figures import (
    interleaved,
    last_line,
    main,
    peak_above_start,
    ratio,
    real_inputs,
)
from tests.benchmarks.models import pythia

PROMPT, RESPONSE, REPEATS = 32, 32, 5
SIZES = {"tinystories": 16, "wide": 2}
MEMORY = {"tinystories": 2**30, "wide": 2**29}
AT_MOST = {
    "agreement_with_tutorial": 1e-5,
    "agreement_with_tutorial_wide": 1e-5,
    "memory_vs_tutorial": 0.25,
    "memory_vs_tutorial_wide": 0.1,
}
AT_LEAST = {"speedup_vs_tutorial": 3.0, "speedup_vs_tutorial_wide": 10.0}


def load(which: str) -> PreTrainedModel:
    if which == "tinystories":
        (folder,) = real_inputs("models/tinystories-656k")
        return AutoModelForCausalLM.from_pretrained(folder).eval()
    return pythia(hidden_size=128, num_attention_heads=4, intermediate_size=512).eval()


def sequences(count: int, seed: int, vocabulary: int) -> list[Encoded]:
    """Random tokens, drawn as words are: by falling frequency."""
    random = np.random.default_rng(seed)
    ranks = random.zipf(1.2, size=(count, 4 * (PROMPT + RESPONSE)))
    rows = [row[row < vocabulary - 3][: PROMPT + RESPONSE] + 2 for row in ranks]
    return [Encoded(tuple(int(token) for token in row), PROMPT) for row in rows]


def ours(policy: PolicyFunction, observed: list[Encoded], updating: list[Encoded]) -> Tensor:
    """The map of single SFT steps."""
    examples = [RecordedExample(id=str(n), chosen=each) for n, each in enumerate(updating)]
    memory = MEMORY["tinystories" if len(observed) == SIZES["tinystories"] else "wide"]
    result = force_map(policy, observed, examples, SFT(SFTConfig()), memory_bytes=memory)
    return torch.from_numpy(result.force)


def tutorial(model: PreTrainedModel, observed: list[Encoded], updating: list[Encoded]) -> Tensor:
    """torch.func's NTK tutorial on response tokens: `vmap(jacrev(f), (None, 0))` of all samples at
    once, one Jacobian row a token, then an einsum a parameter; attention by the kernel that vmap
    has a rule for."""
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def logps(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
        logits = functional_call(model, weights, (ids[None],), {"use_cache": False}).logits
        chosen = ids[PROMPT:, None]
        return torch.log_softmax(logits[0, PROMPT - 1 : -1], -1).gather(-1, chosen).squeeze(-1)

    with sdpa_kernel(SDPBackend.MATH):
        left, right = (
            vmap(jacrev(logps), (None, 0))(weights, torch.tensor([each.ids for each in side]))
            for side in (observed, updating)
        )
    total = torch.zeros(())
    for name in weights:
        one, other = (side.pop(name).flatten(2).flatten(0, 1) for side in (left, right))
        total = total + torch.einsum("mp,lp->ml", one, other)
    return total / len(updating)


def works(which: str) -> dict[str, partial[Tensor]]:
    """The same map by both."""
    model = load(which)
    sides = [sequences(SIZES[which], seed, model.config.vocab_size) for seed in (0, 1)]
    return {
        "ours": partial(ours, PolicyFunction(model), *sides),
        "tutorial": partial(tutorial, model, *sides),
    }


def against_tutorial(which: str, _: Path) -> dict[str, float]:
    fast, slow = works(which).values()
    made, truth = fast(), slow()
    times = interleaved(fast, slow, repeats=REPEATS)
    peaks = [float(last_line("forces", "--peak", which, who)) for who in ("ours", "tutorial")]
    figures = {
        "agreement_with_tutorial": float((made - truth).norm() / truth.norm()),
        "seconds": statistics.median(times[0]),
        "seconds_tutorial": statistics.median(times[1]),
        "peak_mb": peaks[0] / 2**20,
        "memory_vs_tutorial": peaks[0] / peaks[1],
        **ratio("speedup_vs_tutorial", *reversed(times)),
    }
    suffix = "" if which == "tinystories" else f"_{which}"
    named = {f"{name}{suffix}": value for name, value in figures.items()}
    return named | {"threads": float(torch.get_num_threads())}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print(peak_above_start(works(sys.argv[2])[sys.argv[3]]))
    else:
        parts = {which: partial(against_tutorial, which) for which in SIZES}
        main(parts, at_least=AT_LEAST, at_most=AT_MOST)
