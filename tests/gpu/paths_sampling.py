"""Probing, scoring and sampling on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.evaluation.displacement import likelihood_displacement, one_update
from dynolab.evaluation.token_choice import completion_forces, token_choice
from dynolab.forces import PolicyFunction
from dynolab.judges.log_prob import LogProbJudge
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.rollouts.sample import SampleConfig, sample_responses
from dynolab.training.config import OptimizerConfig
from models.tiny import TinyConfig, build_tiny
from tests.evaluation.test_displacement import GRPO, MIXED
from tests.forces.families import FAMILIES, build
from tests.forces.small_models import neox
from tests.judges.test_log_prob import TOKENIZER
from tests.judges.verdicts import contest
from tests.training.small import make_files, make_policy, make_tokenizer


def probe(per_token: bool, folder: Path) -> None:
    make_files(folder)
    tokenizer = make_tokenizer()
    logits = ResponseLogits(make_policy(tokenizer).to("cuda"))
    rows = list(read_rows(folder / "probes.jsonl", ProbeRow))
    encoder = Encoder(tokenizer, 48, "error")
    assert score_probes(logits, rows, encoder, batch_tokens=120, per_token=per_token)


def check_family(family: str, _: Path) -> None:
    """All layouts of a family against its own forward."""
    ResponseLogits(build(family, torch.float32).to("cuda"))


def sample(temperature: float, _: Path) -> None:
    tokenizer = make_tokenizer()
    policy = make_policy(tokenizer).to("cuda")
    config = SampleConfig(temperature=temperature, max_new_tokens=5, batch_size=2, stop=("w3",))
    assert len(sample_responses(policy, tokenizer, ["w1 w2", "w5", "w7 w8 w9"], config)) == 3


def judge(_: Path) -> None:
    logits = ResponseLogits(build_tiny(TinyConfig(), TOKENIZER).eval().to("cuda"))
    by_likelihood = LogProbJudge("reference", logits, Encoder(TOKENIZER, 64, "drop"), batch=3)
    assert by_likelihood.judge([contest()])


def displace(_: Path) -> None:
    logits = ResponseLogits(neox().to("cuda"))
    question = type(MIXED)(MIXED.batch.to("cuda"), MIXED.correct.to("cuda"))
    sgd = OptimizerConfig(name="sgd", learning_rate=1e-3)
    assert likelihood_displacement(logits, [question], one_update(GRPO, sgd))
    policy = PolicyFunction(logits.model)
    assert len(completion_forces(policy, GRPO, question)) == 3
    assert token_choice(policy, GRPO, question, question.batch).chosen == 0


def paths() -> Iterator[tuple[str, Callable[[Path], None]]]:
    yield "probe", partial(probe, False)
    yield "probe tokens", partial(probe, True)
    for family in FAMILIES:
        yield f"layouts of {family}", partial(check_family, family)
    yield "sample", partial(sample, 0.8)
    yield "sample greedily", partial(sample, 0.0)
    yield "judge by likelihood", judge
    yield "displacement", displace
