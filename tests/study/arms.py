"""The arms that are compared: one world's model finetuned in several ways, in this process alone.

Every setting is the built-in study's own; only the engine, the probed steps and the recorded step
differ. A seed's folder holds `world/`, `base/model/`, and one folder per finetuning as a training
stage leaves it: `probes.jsonl`, `metrics.jsonl`, one force record, `model/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynolab.data.rows import Example, ProbeRow, read_rows, with_rejected, write_rows
from dynolab.data.sources.load import DataConfig, load_data
from dynolab.rollouts.decoding import SampleConfig, sample_responses
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.job import TrainJob
from flows.parameters.parse import load_parameters
from flows.study.parameters import StudyParameters, resolved
from models.language import load_language_model, load_tokenizer, save_language_model
from models.tiny import TinyConfig, build_tiny
from tasks.ranks.train import run

STUDY = Path(__file__).parents[2] / "deploy" / "studies" / "builtin.yaml"
PROBE_EVERY = 20

SFT, OFF_POLICY, RESAMPLED, FLAT, ADAMW = "sft", "off-policy", "resampled", "flat", "adamw"
ARMS = (FLAT, SFT, OFF_POLICY, RESAMPLED, ADAMW)
"""`sft` itself and what starts from it, the longest first; `flat` has an SFT of its own."""

ADAMW_OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=3e-5)
"""A contrast. With this rate the margin grows about as much as with the study's SGD on seed 0; on
other seeds it grows less."""


def study_parameters(seed: int, changes: Sequence[str] = ()) -> StudyParameters:
    """The built-in study's parameters with one seed for world, weights and batches."""
    return resolved(load_parameters(StudyParameters, STUDY, [*changes, f"seed={seed}"]))


def prepare(parameters: StudyParameters, folder: Path) -> None:
    """The world, its base model and the finetuned model that most arms start from."""
    world = _write_world(parameters.data, folder / "world")
    tokenizer, initial = load_tokenizer(world / "tokenizer"), folder / "initial"
    save_language_model(build_tiny(TinyConfig(seed=parameters.seed), tokenizer), tokenizer, initial)
    job = TrainJob(
        config=parameters.base.training,
        model=initial,
        examples=world / "corpus.jsonl",
        output=folder / "base",
        resume_out=folder / "base-resume",
    )
    run(job)
    finetune(parameters.sft, folder / "base", world, folder / SFT)


def train_arm(arm: str, parameters: StudyParameters, folder: Path) -> Path:
    """Trains an arm in a prepared folder; returns where its results lie."""
    world, start, output = folder / "world", folder / SFT, folder / arm
    preference = parameters.preference
    if arm == SFT:
        return output
    if arm == RESAMPLED:
        world = _resample(world, start, parameters.seed, folder / "sampled")
    elif arm == ADAMW:
        preference = preference.model_copy(update={"optimizer": ADAMW_OPTIMIZER})
    elif arm == FLAT:
        flat = parameters.data.world.model_copy(update={"zipf": 0.0})
        data = parameters.data.model_copy(update={"world": flat})
        world = _write_world(data, folder / "flat-world")
        # The preference touches answers alone: both worlds have one base model.
        corpus, other = (one / "corpus.jsonl" for one in (world, folder / "world"))
        assert corpus.read_bytes() == other.read_bytes()
        start = finetune(parameters.sft, folder / "base", world, folder / "flat-sft")
    return finetune(preference, start, world, output)


def _write_world(config: DataConfig, folder: Path) -> Path:
    """Rows and tokenizer, and the probes of the training prompts: they decide."""
    folder.mkdir(parents=True)
    data = load_data(config)
    assert data.world is not None
    write_rows(folder / "train.jsonl", data.pairs)
    write_rows(folder / "probes.jsonl", [row for row in data.probes if row.split == "train"])
    write_rows(folder / "corpus.jsonl", data.world.corpus)
    data.world.tokenizer().save_pretrained(folder / "tokenizer")
    return folder


def finetune(config: TrainConfig, start: Path, world: Path, output: Path) -> Path:
    """Trains on a world's pairs from the model of an earlier training; returns `output`."""
    changes = {
        "engine": {"kind": "plain", "ranks": 1},
        "probe_every": PROBE_EVERY,
        "record_steps": [config.steps // 2],
    }
    job = TrainJob(
        config=TrainConfig.model_validate(config.model_dump() | changes),
        model=start / "model",
        examples=world / "train.jsonl",
        probes=world / "probes.jsonl",
        output=output,
        resume_out=output.with_name(f"{output.name}-resume"),
    )
    run(job)
    return output


def _resample(world: Path, start: Path, seed: int, folder: Path) -> Path:
    """The world's pairs with the starting policy's own samples as rejected answers."""
    folder.mkdir()
    examples = list(read_rows(world / "train.jsonl", Example))
    sampled = sample_responses(
        load_language_model(start / "model"),
        load_tokenizer(start / "model"),
        [example.prompt for example in examples],
        SampleConfig(seed=seed),
    )
    write_rows(folder / "train.jsonl", with_rejected(examples, [one.text for one in sampled]))
    write_rows(folder / "probes.jsonl", read_rows(world / "probes.jsonl", ProbeRow))
    return folder
