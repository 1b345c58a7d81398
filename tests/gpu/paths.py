"""Paths through the library, walked on the pretended GPU: `python -m tests.gpu.paths [GROUP…]`.

A path takes an empty folder, and may return figures of its own. Prints one line of JSON for every
path: the counts of `pretended.LOG`, the error that ended it, and its figures.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dynolab.audit.audit import audit_pairs
from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.forces import (
    PolicyFunction,
    kernel_sizes,
    split_step,
    step_forces,
    step_layers,
    step_validity,
)
from dynolab.forces.ledger import recorded_map, responses
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.pushes import example_pushes
from dynolab.functions import ALLOWED
from dynolab.likelihood.streamed import keep_frozen_narrow, stream
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives.dpo import DPO
from dynolab.objectives.pairs import Answers, Pairs
from dynolab.probes.score import score_probes
from dynolab.rollouts.decoding import SampleConfig, sample_responses
from dynolab.training.step_passes import StepPasses
from dynolab.training.step_record import StepRecord
from tests.forces.families import DPO_LOSS, Case, build
from tests.forces.lora import adapted
from tests.forces.small_models import (
    ADAMW,
    encoded,
    neox,
    pairs,
    recorded,
    trained,
    with_reference,
)
from tests.forces.test_ledger import FUNCTIONALS, OPTIMIZERS
from tests.forces.test_step_forces import PROBES, Numbers
from tests.gpu.pretended import GPU, LOG, machine_with_gpu
from tests.training.every_objective import small_training
from tests.training.small import (
    apart,
    make_files,
    make_job,
    make_policy,
    make_tokenizer,
    run,
    settings,
    state,
)

STEPS = 3
Path_ = Callable[[Path], Any]


def train_and_resume(name: str, folder: Path) -> None:
    """A training, and another one that goes on from its resume state to the same bits."""
    make_files(folder)
    config = small_training(name)
    whole = run(make_job(folder, folder / "whole", config))
    resumed = run(make_job(folder, folder / "resumed", config, resume_from=state(whole, 3)))
    assert apart(whole, resumed) == 0


def micro_batch(name: str, folder: Path) -> dict[str, float]:
    """Waits and copies of a step with one micro-batch, the average over steps."""
    make_files(folder)
    counts = {"waits": 0, "copies": 0}
    accumulate = StepPasses.accumulate

    def counted(*args: Any) -> Any:
        before = {kind: LOG[kind].total() for kind in counts}
        result = accumulate(*args)
        for kind in counts:
            counts[kind] += LOG[kind].total() - before[kind]
        return result

    plain = {"steps": STEPS, "checkpoint_every": 0, "record_steps": []}
    size = small_training(name).batch_size
    config = small_training(name, micro_batch_size=size, **plain)
    with patch.object(StepPasses, "accumulate", counted):
        run(make_job(folder, folder / "trained", config))
    return {kind: count / STEPS for kind, count in counts.items()}


def policy_of(family: str = "gpt_neox") -> PolicyFunction:
    return PolicyFunction(build(family, torch.float64).to("cuda"), torch.float64)


def streamed_policy(family: str = "gpt_neox") -> PolicyFunction:
    """Its weights wait in main memory."""
    return PolicyFunction(build(family, torch.float64), torch.float64, device=GPU)


def equal(one: Any, other: Any) -> None:
    """Whether all figures of two results agree to rounding."""
    figures = []
    for result in (one, other):
        rows = getattr(result, "rows", result)
        rows = rows if isinstance(rows, list) else [rows]
        values = (value for row in rows for value in row.model_dump().values())
        figures.append(torch.tensor([v for v in values if isinstance(v, float)]))
    assert len(figures[0])
    torch.testing.assert_close(*figures, rtol=1e-6, atol=1e-12, equal_nan=True)


def map_of(family: str, _: Path) -> None:
    """With weights on the GPU, and in main memory."""
    examples = with_reference(build(family), pairs(2))
    maps = [Case(make(family), examples).map().cpu() for make in (policy_of, streamed_policy)]
    assert maps[0].norm() > 0
    torch.testing.assert_close(*maps, rtol=1e-9, atol=1e-12)


@cache
def record() -> StepRecord:
    return recorded(neox(), ADAMW, count=3)


def on_a_step(measure: Callable[..., Any], _: Path) -> None:
    """With weights on the GPU, and in main memory."""
    encoder = Encoder(Numbers(), 32, "drop")
    made = (
        measure(record(), make(), probes=PROBES, encoder=encoder, stage="dpo")
        for make in (policy_of, streamed_policy)
    )
    equal(*made)


def adapters(_: Path) -> None:
    """Of weights frozen in bf16, on the GPU and in main memory."""
    models = [adapted("llama_tied", torch.float32).eval() for _ in range(2)]
    for model in models:
        keep_frozen_narrow(model)
    step, encoder = recorded(models[0], ADAMW), Encoder(Numbers(), 32, "drop")
    policies = (PolicyFunction(models[0].to("cuda")), PolicyFunction(models[1], device=GPU))
    one, other = (step_forces(step, own, PROBES, encoder, stage="dpo").rows for own in policies)
    for row, waiting in zip(one, other, strict=True):
        assert math.isclose(row.predicted, waiting.predicted, rel_tol=1e-4, abs_tol=1e-6)


def pushes(_: Path) -> None:
    """With weights on the GPU, and in main memory."""
    made = []
    for policy in (policy_of(), streamed_policy()):
        gradient = split_step(record(), policy).gradient
        gradients = responses.gradients_of(record(), policy)
        made.append(example_pushes(record(), gradients, gradient, [encoded(1, 4, 3)]))
    torch.testing.assert_close(*made, rtol=1e-9, atol=1e-12)


def ledger(_: Path) -> None:
    """With room on the GPU, without for what is beside the weights, and with these waiting."""
    steps = trained(OPTIMIZERS["adamw"], steps=STEPS)
    lines = []
    for room, make in ((2**30, policy_of), (0, policy_of), (2**30, streamed_policy)):
        bytes_of = {"memory_for": lambda _, room=room: room}
        with ExitStack() as patched:
            for module in (recorded_map, responses):
                patched.enter_context(patch.multiple(module, **bytes_of))
            entries = Ledger(make(), FUNCTIONALS, by_token=[0])
            lines.append(torch.cat([entries.enter(step).lines.cpu() for step in reversed(steps)]))
    for other in lines[1:]:
        torch.testing.assert_close(lines[0], other, rtol=1e-9, atol=1e-12)


def kernel(_: Path) -> None:
    kernel_sizes(policy_of(), [encoded(1, 4, 3)], [encoded(3, 4, 3)])


def audit(_: Path) -> None:
    everyone = [pair.encoded() for pair in pairs(4)]
    policies = (make("llama_tied") for make in (policy_of, streamed_policy))
    equal(*(audit_pairs(own, everyone[:3], DPO_LOSS, heldout=everyone[3:]) for own in policies))


def on_gpu_and_streamed() -> list[PreTrainedModel]:
    """A model with its weights on the GPU, and one whose weights wait in main memory."""
    models = [make_policy(make_tokenizer()) for _ in range(2)]
    stream(models[1], GPU)
    return [models[0].to("cuda"), models[1]]


def probe(folder: Path) -> None:
    make_files(folder)
    rows = list(read_rows(folder / "probes.jsonl", ProbeRow))
    encoder = Encoder(make_tokenizer(), 48, "error")
    equal(
        *(
            score_probes(ResponseLogits(model), rows, encoder, batch_tokens=120)
            for model in on_gpu_and_streamed()
        )
    )


def sample(temperature: float, _: Path) -> None:
    config = SampleConfig(temperature=temperature, max_new_tokens=5, batch_size=2, stop=("w3",))
    prompts = ["w1 w2", "w5", "w7 w8 w9"]
    one, other = (
        [each.encoded.ids for each in sample_responses(model, make_tokenizer(), prompts, config)]
        for model in on_gpu_and_streamed()
    )
    assert one == other and len(one) == 3


def host_tensor_in_a_loss(folder: Path) -> None:
    make_files(folder)
    own = DPO.pair_loss

    def mistaken(self: DPO, chosen: Answers, rejected: Answers) -> Pairs:
        return own(self, chosen, rejected) + torch.zeros(len(chosen.logp))

    with patch.object(DPO, "pair_loss", mistaken):
        run(make_job(folder, folder / "trained", settings(steps=1, record_steps=[])))


def there() -> Tensor:
    return torch.arange(6.0, device="cuda")


PLANTED: dict[str, Callable[[], object]] = {
    "host values, GPU indices": lambda: torch.arange(6.0)[there().long()],
    "GPU values, host indices": lambda: there()[torch.tensor([0, 1])],
    "a host scalar": lambda: there() + torch.tensor(1.0),
    "joined with a host tensor": lambda: torch.cat([there(), torch.ones(1)]),
    "read": lambda: float(there().sum()),
    "mask": lambda: there()[there() > 2],
    "copied from pageable memory": lambda: torch.ones(2).to("cuda", non_blocking=True),
    "copied from pinned memory": lambda: torch.ones(2).pin_memory().to("cuda", non_blocking=True),
    "copied to the host": lambda: there().cpu(),
    "added in any order": lambda: there().index_add(0, there().long(), there()),
    "integers added": lambda: there().long().index_add(0, there().long(), there().long()),
}

TRAININGS = (
    "sft",
    "dpo",
    "dpo designed by pair",
    "ipo designed by token",
    "simpo",
    "grpo",
    "grpo nthr",
    "simko",
    "online sppo",
)
"""One for each way in which a loss is put together."""

GROUPS: dict[str, Mapping[str, Path_]] = {
    "training": {name: partial(train_and_resume, name) for name in TRAININGS},
    "micro_batch": {
        name: partial(micro_batch, name)
        for name in ("dpo", "sft", "ipo mean", "sppo soft", "grpo", "online dpo")
    },
    "forces": {
        "map of gpt_neox": partial(map_of, "gpt_neox"),
        "map of llama_tied": partial(map_of, "llama_tied"),
        "step forces": partial(on_a_step, step_forces),
        "step layers": partial(on_a_step, step_layers),
        "step validity": partial(on_a_step, step_validity),
        "pushes": pushes,
        "step forces of adapters": adapters,
        "ledger": ledger,
        "kernel": kernel,
        "audit": audit,
    },
    "sampling": {
        "probe": probe,
        "sample": partial(sample, 0.8),
        "sample greedily": partial(sample, 0.0),
    },
    "planted": {
        "host tensor in a loss": host_tensor_in_a_loss,
        **{name: lambda _, act=act: str(act()) for name, act in PLANTED.items()},
    },
}


def walk(path: Path_) -> dict[str, Any]:
    """The counts of one path, the error that ended it, and its own figures."""
    for counts in LOG.values():
        counts.clear()
    error, figures = None, None
    with tempfile.TemporaryDirectory() as folder, machine_with_gpu():
        try:
            figures = path(Path(folder))
        except Exception:
            error = traceback.format_exc()
    return {"error": error, "figures": figures, **{kind: dict(LOG[kind]) for kind in LOG}}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    os.environ[ALLOWED] = "tests.training.rewards"
    for group in sys.argv[1:] or GROUPS:
        for name, path in GROUPS[group].items():
            print(json.dumps({"group": group, "path": name, **walk(path)}), flush=True)
