"""What trainings of large models and their analyses take, beside their plans: part of `sharded`.

    python -m tests.benchmarks.large

Trainings are of DPO, on rows of up to 72 tokens. As a program it prints, of 160M weights that wait
in main memory, in a process of its own whose GPU is pretended:

- `streamed_forces_over_training`, `…_audit_…`, `…_ledger_…`: most bytes of tensors on the GPU, over
  the training's, without records.
- `streamed_plan_error`: the largest relative error of `--plan` of these three.
"""

from __future__ import annotations

import gc
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor
from transformers import PreTrainedModel

import tasks.audit
import tasks.forces
import tasks.ledger
from dynolab.audit.audit import audit_pairs
from dynolab.costs.machines import Machine, StageCost, machine_named, this_machine
from dynolab.costs.traced import LiveBytes
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example, ProbeRow, read_rows, write_rows
from dynolab.data.sources.load import DataConfig
from dynolab.forces import PolicyFunction, step_forces
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.pushes import example_pushes
from dynolab.forces.ledger.responses import gradients_of
from dynolab.forces.ledger.watched import kind_means
from dynolab.objectives import build_objective
from dynolab.training.config import TrainConfig
from dynolab.training.job import TrainJob
from models.language import load_language_model, load_tokenizer
from tasks.audit import AuditJob
from tasks.forces import ForcesConfig
from tasks.ledger import LedgerJob
from tasks.shared.cost_inputs import Inputs
from tasks.shared.costs import Costs
from tasks.shared.policies import load_policy
from tests.benchmarks.models import PYTHIA_160M, pythia, random_pairs
from tests.training.small import (
    WORDS,
    make_job,
    make_tokenizer,
    probes_of,
    run,
    settings,
    step_record,
)

PAIRS, TOKENS = 4, 512
LENGTHS = (48, 24, 20)
"""Words of prompts, chosen and rejected answers, each a token."""
SMALL_GPU = Machine("small", 1, 1, 2**40, 1e13, 1e14, 1e10, 1e10, 1e9, "has no room for any copy")


def write_inputs(
    home: Path,
    model: PreTrainedModel,
    lengths: tuple[int, int, int] = LENGTHS,
    watched: int = PAIRS,
) -> list[ProbeRow]:
    """Writes a model, its tokenizer, pairs, and probe rows of some of them, which are returned."""
    model.save_pretrained(home / "model")
    make_tokenizer().save_pretrained(home / "model")
    rows = random_pairs([f" {word}" for word in WORDS], lengths, max(4 * PAIRS, watched))
    write_rows(home / "train.jsonl", rows)
    probes = probes_of(rows[:watched])
    write_rows(home / "probes.jsonl", probes)
    return probes


def config_of(**changes: Any) -> TrainConfig:
    """Two steps of DPO, both recorded."""
    plain: dict[str, Any] = {
        "engine": {"kind": "plain", "ranks": 1},
        "steps": 2,
        "record_steps": [0, 1],
        "probe_every": 0,
        "checkpoint_every": 0,
        "warmup_steps": 0,
        "batch_size": PAIRS,
        "micro_batch_size": 2,
    }
    return settings(**plain | changes)


def adapted(rank: int, **changes: Any) -> TrainConfig:
    """DPO on adapters of a model in bf16."""
    bf16 = {"kind": "plain", "ranks": 1, "dtype": "bf16", "checkpoint_activations": rank > 2}
    return config_of(lora={"rank": rank}, engine=bf16, overlong="truncate_left", **changes)


def account(policy: PolicyFunction, job: TrainJob, watched: list[Functional], home: Path) -> None:
    """A ledger of both steps, whose functionals take turns."""
    waiting = home / "waiting"
    ledger = Ledger(policy, watched, batch_tokens=TOKENS, waiting=waiting, memory_bytes=1)
    for step in (1, 0):
        ledger.enter(step_record(job, step))


def planned(
    config: TrainConfig, source: str, data: DataConfig, machine: Machine, forces: ForcesConfig
) -> dict[str, StageCost]:
    """What a training takes, and its analyses."""
    costs = Costs(Inputs(source, None, data), machine)
    audit = AuditJob(objective=config.objective, batch_tokens=forces.batch_tokens)
    ledger = LedgerJob(training=config, pairs=PAIRS, batch_tokens=forces.batch_tokens)
    return {
        "training": costs.training(config),
        "forces": tasks.forces.estimate(costs, forces, {"trained": config}),
        "audit": tasks.audit.estimate(costs, audit, {}),
        "ledger": tasks.ledger.estimate(costs, ledger, {}),
    }


def plan_error(plans: Mapping[str, StageCost], took: Mapping[str, int]) -> float:
    """The largest relative error."""
    return max(abs(plans[name].rank_bytes / most - 1) for name, most in took.items())


def lora(home: Path) -> dict[str, Any]:
    """What a training of adapters and its analyses take, and their plans."""
    home = home / "lora"
    home.mkdir()
    shape = PYTHIA_160M | {"vocab_size": 13_056, "num_hidden_layers": 20}
    probes = write_inputs(home, pythia(**shape))
    config = adapted(rank=2)
    job = make_job(home, home, config)
    encoder = Encoder(load_tokenizer(job.model), 2048, "error")
    watched = [own for _, own in kind_means(probes, encoder, PAIRS)]

    def policy() -> PolicyFunction:
        return load_policy(job.output / "model", job.output / "adapter")

    def forces() -> None:
        record = step_record(job, 1)
        step_forces(record, policy(), probes, encoder, stage="dpo", batch_tokens=TOKENS)

    took = {
        "training": most_bytes(lambda: run(job)),
        "forces": most_bytes(forces),
        "ledger": most_bytes(lambda: account(policy(), job, watched, home)),
    }
    took["ledger"] = max(took["ledger"], took["training"])  # a ledger trains again
    rows = str(home / "train.jsonl")
    data = DataConfig(source="file", path=rows, heldout_rows=0, probe_pairs=PAIRS)
    own = ForcesConfig(pairs=PAIRS, batch_tokens=TOKENS)
    here = planned(config, str(home / "model"), data, this_machine(), own)
    large = adapted(rank=8, max_length=192, batch_size=16, micro_batch_size=1)
    card = machine_named("rtx4090")
    short = ForcesConfig(pairs=PAIRS, batch_tokens=192)
    hh = DataConfig(source="hub", hub_name="Anthropic/hh-rlhf")
    there = planned(large, "meta-llama/Meta-Llama-3-8B", hh, card, short)
    return {
        "lora_forces_over_training": took["forces"] / took["training"],
        "lora_ledger_over_training": took["ledger"] / took["training"],
        "lora_plan_error": plan_error(here, took),
        "lora_8b_on_24gb": all(there[name].lacks(card) is None for name in took),
    }


def most_bytes(work: Callable[[], object]) -> int:
    """Of tensors at once."""
    gc.collect()
    with LiveBytes() as live:
        work()
    return live.most


def streamed(home: Path) -> dict[str, float]:
    """What analyses take on the GPU, beside the training's bytes and their own plans."""
    from tests.gpu.pretended import GPU, PretendedTensor, machine_with_gpu

    def most_on_gpu(work: Callable[[], object]) -> int:
        """Bytes of tensors at once, also of what hooks make in a backward pass."""
        gc.collect()
        live, make = LiveBytes(), PretendedTensor.__new__

        def counted(cls: type[PretendedTensor], values: Tensor) -> PretendedTensor:
            live.count(values.untyped_storage())
            return make(cls, values)

        with patch.object(PretendedTensor, "__new__", staticmethod(counted)):
            work()
        return live.most

    probes = write_inputs(home, pythia(**PYTHIA_160M | {"vocab_size": 13_056}))
    plain = make_job(home, home / "plain", config_of(record_steps=[]))
    training = most_bytes(lambda: run(plain))
    config = config_of()
    job = run(make_job(home, home / "trained", config))
    encoder = Encoder(load_tokenizer(job.model), 2048, "error")
    pairs = encoder.examples(list(read_rows(job.examples, Example)))[:PAIRS]
    watched = [own for _, own in kind_means(probes, encoder, PAIRS)]
    objective: Any = build_objective(config.objective)
    with machine_with_gpu():
        policy = PolicyFunction(load_language_model(job.output / "model"), device=GPU)

        def forces() -> None:
            record = step_record(job, 1)
            made = step_forces(record, policy, probes, encoder, stage="dpo", batch_tokens=TOKENS)
            gradients, chosen = gradients_of(record, policy), [pair.chosen for pair in pairs]
            example_pushes(record, gradients, made.gradient, chosen, batch_tokens=TOKENS)

        took = {
            "forces": most_on_gpu(forces),
            "audit": most_on_gpu(
                lambda: audit_pairs(policy, pairs, objective, batch_tokens=TOKENS)
            ),
            "ledger": most_on_gpu(lambda: account(policy, job, watched, home)),
        }
    over = {f"streamed_{name}_over_training": most / training for name, most in took.items()}
    took["ledger"] = max(took["ledger"], training)  # a ledger trains again
    data = DataConfig(source="file", path=str(home / "train.jsonl"), heldout_rows=0)
    own = ForcesConfig(batch_tokens=TOKENS)
    plans = planned(config, str(home / "model"), data, SMALL_GPU, own)
    return over | {"streamed_plan_error": plan_error(plans, took)}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(streamed(Path(folder))))
