"""Rows, columns, callbacks and forecasts beside what TRL trains on.

    python -m tests.benchmarks.fidelity

Prints one JSON object on its last line; what differs goes to stderr. Sets of keys: those of
`tests.fidelity.reading` (chat templates and tokenizers by shapes of rows: token ids and completion
masks of both sides), `tests.fidelity.public` (files in public data sets' columns) and, by the names
of their modules there, `callbacks`, `situations`, `doses`, `kills` and `time_shares`.
`self_check_catches`: share of the faults of `tests.integrations.test_self_check` that accounts say.
With a folder of models and data in `DYNOLAB_TEST_DATA`:

- `gemma_shape_rank_correlation`: Spearman's, over 24 pairs, between the changes of their chosen
  answers that the audit foresees for a step on all of them, and those that a step of TRL's DPO loss
  makes, in float64 and on TRL's tokens.
- `gemma_shape_relative_error`: the largest difference between both, each divided by its largest
  change.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import load_dataset
from scipy.stats import spearmanr
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from trl import DPOConfig as TRLConfig, DPOTrainer

from dynolab import Encoder
from dynolab.audit.audit import audit_pairs
from dynolab.forces import PolicyFunction
from dynolab.objectives import DPO, DPOConfig
from tests.benchmarks.figures import main, with_data
from tests.fidelity import callbacks, doses, kills, public, reading, situations, time_shares
from tests.integrations.test_self_check import caught

RATE, CONTEXT = 1e-3, 256
"""Of rates from 1e-7 to 1e-1, smaller ones drown in the float32 of Gemma's norms, larger ones in
curvature."""

AT_LEAST = {
    "template_shapes": 24,
    "row_shapes": 30,
    "public_datasets_recognised": 14,
    "callback_families": 24,
    "rows_named": 1.0,
    "callback_weights_identical": True,
    "gemma_shape_rank_correlation": 0.99,
    "situations": 40,
    "self_check_catches": 1.0,
    "accounts_kept_after_kill": 1.0,
    "dose_logged_over_true_low": 0.9,
    "dose_bf16_over_fp32_low": 0.95,
}
AT_MOST = {
    "silently_wrong": 0,
    "unclear": 0,
    "weights_differ": 0,
    "dose_logged_over_true_high": 1.1,
    "dose_bf16_over_fp32_high": 1.05,
    **dict.fromkeys([f"share_kept_{size}" for size in time_shares.SIZES], 1.2),
    "tokens_silently_different": 0,
    "probe_vs_trl_max": 1e-4,
    "trainings_ended": 0,
    "account_closure_max": 1e-5,
    "ddp_equals_one_process": 1e-6,
}


def forecasts(home: Path) -> dict[str, float]:
    """What the audit foresees beside a float64 step of TRL's loss on TRL's tokens."""
    source = Path(os.environ["DYNOLAB_TEST_DATA"])
    folder, file = source / "models/gemma-shape", source / "data/cases/c24.jsonl"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    pairs = Encoder(tokenizer, CONTEXT, "error").examples(public.read_pairs(file, tokenizer))
    policy = PolicyFunction(copy.deepcopy(model), torch.float64)
    foreseen = [row.from_all for row in audit_pairs(policy, pairs, DPO(DPOConfig()))]
    changed = _changes_by_a_step(model, tokenizer, file, home)
    scaled = [np.array(changes) / np.abs(changes).max() for changes in (foreseen, changed)]
    return {
        "gemma_shape_rank_correlation": float(spearmanr(foreseen, changed).statistic),
        "gemma_shape_relative_error": float(np.abs(scaled[0] - scaled[1]).max()),
    }


def _changes_by_a_step(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, file: Path, home: Path
) -> list[float]:
    """Changes of the chosen answers' log-probabilities by one step of TRL's loss on all rows."""
    plain = copy.deepcopy(model).eval()  # the trainer gives its model another head
    trainer: Any = DPOTrainer(
        model=model,
        ref_model=copy.deepcopy(model),
        args=TRLConfig(output_dir=str(home), report_to=[], bf16=False, use_cpu=True),
        train_dataset=load_dataset(
            "json", data_files=str(file), split="train", cache_dir=str(home)
        ),
        processing_class=tokenizer,
    )
    batch = trainer.data_collator(list(trainer.train_dataset))
    trainer.compute_loss(trainer.model.eval(), batch).backward()
    before = _chosen(plain, batch)
    gradients = {name: weight.grad for name, weight in trainer.model.named_parameters()}
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            weight -= RATE * gradients[name]
    return (_chosen(plain, batch) - before).tolist()


@torch.no_grad()
def _chosen(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Log-probabilities of the chosen answers, which are a batch's first half."""
    half = len(batch["input_ids"]) // 2
    ids, mask, held = (
        batch[name][:half] for name in ("input_ids", "attention_mask", "completion_mask")
    )
    logp = model(input_ids=ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    return (logp.gather(-1, ids[:, 1:, None])[..., 0] * held[:, 1:]).sum(-1)


if __name__ == "__main__":
    modules = {
        "reading": reading,
        "public": public,
        "callbacks": callbacks,
        "situations": situations,
        "doses": doses,
        "kills": kills,
        "time_shares": time_shares,
    }
    parts = {name: module.measure for name, module in modules.items()}
    parts["self_check"] = lambda home: {"self_check_catches": caught(home)}
    main(parts | with_data(forecasts=forecasts), at_least=AT_LEAST, at_most=AT_MOST)
