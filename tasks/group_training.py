"""Stages `prompts` and `group`: training on completions that the policy samples itself."""

from __future__ import annotations

from dynolab.data.rows import write_rows
from dynolab.data.sources.load import DataConfig, load_prompts
from dynolab.training.config import GroupTrainConfig
from tasks.data import chat_tokenizer
from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.training import run_training


def freeze_prompts(work: Work[DataConfig]) -> dict[str, float]:
    """Reads no inputs.

    Results: `train.jsonl` and `heldout.jsonl`, prompts with the answers to check completions by.
    """

    with work.shown():
        prompts = load_prompts(work.config, chat_tokenizer(work.config))
        counts = {
            "data/train_prompts": write_rows(work.output / "train.jsonl", prompts.train),
            "data/heldout_prompts": write_rows(work.output / "heldout.jsonl", prompts.heldout),
        }
    return {**prompts.counts, **counts, "seconds": work.seconds}


def train_on_groups(work: Work[GroupTrainConfig]) -> dict[str, float]:
    """Trains input `model` on the prompts of input `prompts`; input `data` has the probes."""
    return run_training(work, work.input_folder("prompts") / "train.jsonl")


# The hash of its content identifies a file, so its path is no part of the key.
PROMPTS = Stage(
    "prompts",
    2,
    freeze_prompts,
    operational=frozenset({"path", "chat_model", "probes", "probes_revision"}),
)
GROUP = Stage("group", 6, train_on_groups, operational=frozenset({"keep_steps"}))
