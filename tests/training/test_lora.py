"""Training of adapters alone: the reference, the merged result, and adapters taken apart again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from dynolab.data.encode import Encoder
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.errors import ConfigError
from dynolab.forces import PolicyFunction, replay_error, rounding_floor, split_step
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.tables import InRunLedger, LedgerTables
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.study import ProbeScore
from dynolab.training.adapters import ADAPTERS, add_adapters, save_merged, unmerge_adapters
from dynolab.training.config import InRunLedgerConfig, LoraConfig
from dynolab.training.loop import train
from models.language import load_language_model, load_tokenizer
from models.tiny import TinyConfig, build_tiny
from tasks.shared.policies import load_policy
from tests.training.small import (
    apart,
    group_settings,
    make_job,
    make_tokenizer,
    metrics,
    run_small,
    settings,
    step_record,
    trained_weights,
)

LORA = {"lora": {"rank": 2, "alpha": 8}, "record_steps": []}


def test_the_result_is_a_plain_model_with_the_adapters_in_it(inputs: Path, tmp_path: Path) -> None:
    job = run_small(inputs, tmp_path, settings(**LORA))
    merged = trained_weights(job)
    initial = load_file(inputs / "model" / "model.safetensors")
    moved = {name for name, w in merged.items() if not torch.equal(w, initial[name])}
    assert moved and all("attention" in name or "mlp" in name for name in moved)
    adapter = job.output / "adapter"
    described = (adapter / "adapter_config.json").read_text()
    assert str(tmp_path) not in described and str(inputs) not in described
    encoder = Encoder(load_tokenizer(job.output / "model"), 48, "error")
    probes = list(read_rows(inputs / "probes.jsonl", ProbeRow))
    last = list(read_rows(job.output / "probes.jsonl", ProbeScore))[-len(probes) :]
    separate = PeftModel.from_pretrained(load_language_model(inputs / "model"), adapter).eval()
    for model in (load_language_model(job.output / "model"), separate):
        scores = score_probes(ResponseLogits(model), probes, encoder, batch_tokens=16_384)
        logps = [score.logp for score in scores]
        assert logps == pytest.approx([score.logp for score in last], abs=1e-4)


def test_the_reference_is_the_model_without_its_adapters(inputs: Path, tmp_path: Path) -> None:
    """As the copy that a training of all weights keeps: where the policy is still it, KL is 0."""
    job = run_small(inputs, tmp_path, group_settings(**LORA, updates_per_rollout=1))
    first, second, *_ = metrics(job)
    assert first["train/kl"] < 1e-6 < second["train/kl"]
    adapters = load_file(job.output / "adapter" / "adapter_model.safetensors")
    assert all(bool(w.any()) for w in adapters.values())


def test_a_recorded_step_of_the_adapters_replays(inputs: Path, tmp_path: Path) -> None:
    sgd = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.5}
    changes = {**LORA, "optimizer": sgd, "record_steps": [1]}
    job = run_small(inputs, tmp_path, group_settings(**changes, steps=2))
    record = step_record(job, 1)
    adapted = PeftModel.from_pretrained(
        load_language_model(inputs / "model"), job.output / "adapter", is_trainable=True
    )
    split = split_step(record, PolicyFunction(adapted, torch.float64))
    assert replay_error(split, record) < 1e-5 + 2 * rounding_floor(record)


def test_forces_of_a_bf16_training_read_its_frozen_weights_as_it_had_them(
    inputs: Path, tmp_path: Path
) -> None:
    engine = {"kind": "plain", "ranks": 1, "dtype": "bf16"}
    config = settings(**{**LORA, "engine": engine, "record_steps": [0, 1, 2], "steps": 3})
    plain = run_small(inputs, tmp_path / "plain", config)
    watching = config.model_copy(update={"ledger": InRunLedgerConfig(every=1, pairs=2)})
    job = make_job(inputs, tmp_path, watching)
    model, tokenizer = load_language_model(job.model), load_tokenizer(job.model)
    train(job, model, tokenizer, partial(InRunLedger, watching.ledger))
    assert apart(job, plain) == 0
    policy = load_policy(job.output / "model", job.output / "adapter")
    base = dict(load_language_model(job.model).named_parameters())
    narrow = {n: w for n, w in policy.weights.items() if w.dtype == torch.bfloat16}
    assert len(narrow) > 3
    for name, weight in narrow.items():
        own = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert torch.equal(weight, base[own].bfloat16()), name
    answers = [example.chosen for example in step_record(job, 0).examples]
    ledger = Ledger(policy, [Functional.mean("chosen", answers)])
    tables = LedgerTables(["chosen"])
    for step in (2, 1, 0):
        tables.add(ledger.enter(step_record(job, step)))
    assert tables.summary().closure < 1e-5


def test_layers_that_the_model_lacks_are_named(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lora\.target.*q_proj"):
        run_small(inputs, tmp_path, settings(lora={"target": ["q_proj"]}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy = add_adapters(build_tiny(TinyConfig(width=16), make_tokenizer()), LoraConfig(rank=2), 0)
    save_merged(policy, {}, tmp_path)
    return tmp_path


def taken(folder: Path) -> torch.nn.Module:
    return unmerge_adapters(load_language_model(folder / "model"), folder / "adapter")


def test_missing_and_surplus_adapters_are_refused_by_name(folder: Path) -> None:
    taken(folder)
    file = folder / "adapter" / ADAPTERS
    whole = load_file(file)
    first = min(whole)
    for weights, message in (
        ({name: w for name, w in whole.items() if name != first}, f"lacks {first}"),
        (
            whole | {"zzz.lora_A.weight": torch.ones(2, 2)},
            r"has an unexpected zzz\.lora_A\.weight",
        ),
    ):
        save_file(weights, file)
        with pytest.raises(ConfigError, match=f"adapter = .*{message}"):
            taken(folder)


@pytest.mark.parametrize("name", [ADAPTERS, "adapter_config.json"])
def test_damaged_adapters_are_named(folder: Path, name: str) -> None:
    file = folder / "adapter" / name
    half = file.read_bytes()[: file.stat().st_size // 2]
    for content in (half, b'{"peft_type": ["LORA"]}'):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"adapter = .*cannot be read"):
            taken(folder)
