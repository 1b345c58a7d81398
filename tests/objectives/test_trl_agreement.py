"""The losses that train here against TRL's trainers, on the same tokens."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig as TrlDPOConfig, DPOTrainer, SFTConfig as TrlSFTConfig, SFTTrainer

from dynolab.data.batches import CHOSEN, REJECTED, Totals, collate, collate_examples, count_totals
from dynolab.data.encode import Encoder
from dynolab.data.rows import Example
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.objectives import DPO, SFT, DPOConfig, SFTConfig
from tests.objectives.small_llama import gradient, model

WORDS = ["<pad>", "<eos>", "<unk>", *"abcdefghijklmnop"]
ROWS = [
    ("a b c", " d e", " f g h"),
    ("b", " h i j k", " a"),
    ("k l", " c c c", " c d c"),
]
COMMON = {
    "per_device_train_batch_size": 3,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
}


def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(WordLevel({w: n for n, w in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


@pytest.fixture
def examples():
    rows = [
        Example(id=str(n), prompt=prompt, chosen=chosen, rejected=rejected)
        for n, (prompt, chosen, rejected) in enumerate(ROWS)
    ]
    return Encoder(tokenizer(), 32, "error").examples(rows)


def test_dpo_is_trl_s_sigmoid_loss(tmp_path, examples):
    policy, reference = model(0), model(1)
    trainer = DPOTrainer(
        model=copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        args=TrlDPOConfig(output_dir=str(tmp_path), beta=0.3, **COMMON),
        train_dataset=Dataset.from_list(
            [{"prompt": p, "chosen": c, "rejected": r} for p, c, r in ROWS]
        ),
        processing_class=tokenizer(),
    )
    inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    theirs = trainer.compute_loss(trainer.model, inputs)

    sides = (CHOSEN, REJECTED)
    batch = collate_examples(examples, 0, sides, count_totals(examples, sides))
    with torch.no_grad():
        scored = token_logps(ResponseLogits(reference)(batch), batch)
    batch = replace(batch, reference=scored)
    ours = DPO(DPOConfig(beta=0.3)).loss(token_logps(ResponseLogits(policy)(batch), batch), batch)

    their_ids = {
        tuple(ids[mask.bool()].tolist())
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
    }
    assert their_ids == {s.ids for example in examples for s in (example.chosen, example.rejected)}
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        gradient(policy, ours), gradient(trainer.model, theirs), rtol=1e-4, atol=1e-6
    )


def test_sft_token_mean_is_trl_s_loss(tmp_path, examples):
    policy = model(0)
    trainer = SFTTrainer(
        model=copy.deepcopy(policy),
        args=TrlSFTConfig(output_dir=str(tmp_path), completion_only_loss=True, **COMMON),
        train_dataset=Dataset.from_list([{"prompt": p, "completion": c} for p, c, _ in ROWS]),
        processing_class=tokenizer(),
    )
    inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    theirs = trainer.compute_loss(trainer.model, inputs)

    chosen = [example.chosen for example in examples]
    batch = collate(chosen, 0)
    logps = token_logps(ResponseLogits(policy)(batch), batch)
    ours = SFT(SFTConfig(normalise="token_mean")).loss(logps, batch)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        gradient(policy, ours), gradient(trainer.model, theirs), rtol=1e-4, atol=1e-6
    )
    tokens = sum(one.response_length for one in chosen)
    summed = SFT(SFTConfig()).loss(logps, replace(batch, totals=Totals(3, tokens, 3)))
    torch.testing.assert_close(summed, theirs * tokens / 3)
