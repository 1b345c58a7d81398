"""Preferences about stories by a rule: chosen endings have a happy word, rejected ones have none.

    PYTHONPATH=deploy/studies python -m stories MODEL STORIES.txt.gz PAIRS.jsonl

Both endings are the model's own, sampled after the first two sentences of a story of TinyStories
(https://huggingface.co/datasets/roneneldan/TinyStories, one story before each <|endoftext|>).
`mitigation_stories.yaml` trains on the pairs and counts happy answers with the reward `happy`.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

HAPPY = re.compile(r"\b(happy|happily|smil\w+|laugh\w*|glad|proud\w*|hug\w*|cheer\w*)\b")
PROMPTS, SAMPLES, BATCH, TOKENS, TEMPERATURE = 800, 6, 40, 64, 0.8


def happy(prompt: str, completions: Sequence[str], row: object) -> list[float]:
    """1 for a completion with a happy word, else 0: a reward."""
    return [float(bool(HAPPY.search(text.lower()))) for text in completions]


def beginnings(stories: Path) -> list[str]:
    """The first two sentences of the first stories that have more."""
    with gzip.open(stories, "rt", encoding="utf-8") as text:
        sentences = [
            re.split(r"(?<=[.!?])\s+", " ".join(story.split()))
            for story in text.read().split("<|endoftext|>")
        ]
    return [" ".join(story[:2]) for story in sentences if len(story) > 4][:PROMPTS]


def main(model_name: str, stories: Path, pairs: Path) -> None:
    """Writes a line for each prompt that has a happy and another ending of whole sentences."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_name, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(model_name).eval()
    torch.manual_seed(0)
    prompts = beginnings(stories)
    with pairs.open("w", encoding="utf-8") as lines:
        for at in range(0, len(prompts), BATCH):
            some = prompts[at : at + BATCH]
            batch = tokenizer(some, return_tensors="pt", padding=True)
            drawn = model.generate(
                **batch,
                do_sample=True,
                top_k=0,
                temperature=TEMPERATURE,
                max_new_tokens=TOKENS,
                num_return_sequences=SAMPLES,
                pad_token_id=tokenizer.pad_token_id,
            )
            texts = tokenizer.batch_decode(
                drawn[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
            for place, prompt in enumerate(some):
                own = texts[SAMPLES * place : SAMPLES * (place + 1)]
                ends = [re.match(r".+[.!?]", " ".join(text.split())) for text in own]
                whole = [f" {end[0]}" for end in ends if end]
                flags = happy(prompt, whole, None)
                by = dict(zip(flags, whole, strict=True))
                if len(by) == 2:
                    row = {"prompt": prompt, "chosen": by[1.0], "rejected": by[0.0]}
                    lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
