"""Situations of public threads, most of them short trainings, judged by the trainer's own words.

`SITUATIONS` holds them by name: a function of a folder that gives a `Verdict`. A training runs
without callbacks and with `ProbeCallback(trainer)` and `ForceCallback(trainer)`. It is `ok` where
probes are what the trainer's own evaluation says, a step's parts add up to what it did to the same
answers, sequences have their rows' names, and nothing else moved the answers; or where one line
that names the cause refuses it. It is `unclear` where something else is said, and otherwise
`silently_wrong`.
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import peft
import torch
from datasets import Dataset, load_dataset
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from trl import (
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from dynolab import ForceCallback, ProbeCallback
from dynolab.errors import ConfigError
from dynolab.results.ledger_reader import read_ledger
from tests.fidelity import public
from tests.fidelity.tokenizers import chat_tokenizer
from tests.integrations.test_forces import PARTS

ROWS, STEPS = 8, 2
WORDS = ("river", "stone", "lamp", "garden", "paper", "window", "yellow", "quiet", "seven")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}"
    "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 1,
    "learning_rate": 0.02,
    "optim": "sgd",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 3,
}


class Verdict(NamedTuple):
    """What became of a situation, and how it differs from what is right."""

    what: Literal["ok", "unclear", "silently_wrong"]
    detail: str = ""
    weights_differ: bool = False


Make = Callable[[Path], Trainer]
Scores = dict[str, float]
"""Mean log-probabilities of the watched answers, by kind."""


class Told(NamedTuple):
    """What a watched training told: its log's lines, why callbacks gave up, names with texts."""

    trainer: Trainer
    probes: list[dict[str, float]]
    accounts: list[dict[str, float]]
    off: str
    texts: dict[str, str]
    weights_differ: bool
    checks: tuple[str, ...]
    """What the accounts say they do not hold."""


def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    made = chat_tokenizer("chatml", folder)
    made.chat_template = TEMPLATE
    return made


def tiny(seed: int = 0, classes: int = 0, **more: Any) -> nn.Module:
    config = LlamaConfig(
        vocab_size=421,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=256,
        initializer_range=0.06,
        pad_token_id=0,
        **({"num_labels": classes} if classes else {}),
        **more,
    )
    torch.manual_seed(seed)
    kind = AutoModelForSequenceClassification if classes else AutoModelForCausalLM
    return kind.from_config(config).float()


def said(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def talks(count: int = ROWS, turns: int = 1, tools: bool = False) -> list[dict[str, Any]]:
    """Conversations of which every question names the row's number."""
    draw, rows = random.Random(0), []
    for number in range(count):
        messages = []
        for _ in range(turns):
            one, other = draw.sample(WORDS, 2)
            messages.append(said("user", f"Where is the {one} number {number}?"))
            if tools:
                messages.append(said("assistant", f"look {one}"))
                messages.append(said("tool", f"{one} {other}"))
            answer = f"The {one} is near the {other}." + " Look there." * (number % 3)
            messages.append(said("assistant", answer))
        rows.append({"messages": messages})
    return rows


def pairs(count: int = ROWS) -> list[dict[str, Any]]:
    rows = [row["messages"] for row in talks(count)]
    worse = [said("assistant", f"I like {word} and bread.") for word in WORDS]
    return [
        {"prompt": [asked], "chosen": [answer], "rejected": [worse[number % len(worse)]]}
        for number, (asked, answer) in enumerate(rows)
    ]


def dpo(folder: Path, kind: type = DPOTrainer, **more: Any) -> Trainer:
    """A DPO training; `model`, `rows` and `peft_config` are the trainer's."""
    model = more.pop("model", tiny)()
    adapters = more.pop("peft_config", None)
    rows = more.pop("rows", pairs())
    settings = {**SETTINGS, "gradient_checkpointing": False, **more}
    return kind(
        model,
        ref_model=None if adapters else tiny(1),
        args=DPOConfig(str(folder), **settings),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(folder),
        peft_config=adapters and adapters(),
    )


def sft(folder: Path, rows: Sequence[dict[str, Any]], **more: Any) -> Trainer:
    settings = {**SETTINGS, "gradient_checkpointing": False, "max_length": 256, **more}
    return SFTTrainer(
        tiny(),
        args=SFTConfig(str(folder), **settings),
        train_dataset=Dataset.from_list(list(rows)),
        processing_class=tokenizer(folder),
    )


def of_pairs(trainer: type, config: type, folder: Path) -> Trainer:
    """CPO and ORPO."""
    settings = {**SETTINGS, "gradient_checkpointing": False, "learning_rate": 0.3}
    return trainer(
        tiny(),
        args=config(str(folder), **settings),
        train_dataset=Dataset.from_list(pairs()),
        processing_class=tokenizer(folder),
    )


def kto(folder: Path) -> Trainer:
    sides = ("chosen", "rejected")
    rows = [
        {"prompt": row["prompt"], "completion": row[sides[n % 2]], "label": not n % 2}
        for n, row in enumerate(pairs(2 * ROWS))
    ]
    return KTOTrainer(
        tiny(),
        ref_model=tiny(1),
        args=KTOConfig(str(folder), **SETTINGS, gradient_checkpointing=False),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(folder),
    )


def gkd(folder: Path) -> Trainer:
    settings = {**SETTINGS, "gradient_checkpointing": False, "lmbda": 0.0, "max_length": 128}
    return GKDTrainer(
        tiny(),
        teacher_model=tiny(4),
        args=GKDConfig(str(folder), **settings),
        train_dataset=Dataset.from_list(talks()),
        processing_class=tokenizer(folder),
    )


def reward(folder: Path) -> Trainer:
    return RewardTrainer(
        tiny(classes=1),
        args=RewardConfig(str(folder), **SETTINGS, gradient_checkpointing=False),
        train_dataset=Dataset.from_list(pairs()),
        processing_class=tokenizer(folder),
    )


class Collator:
    """Encodes questions and answers, and leaves out words of the question by some draws."""

    def __init__(self, source: str, made: PreTrainedTokenizerBase) -> None:
        self.tokenizer = made
        own, mine = np.random.default_rng(0), torch.Generator().manual_seed(0)
        self.draw: Callable[[], float] = {
            "nothing": lambda: 1.0,
            "python": random.random,
            "numpy": np.random.rand,
            "torch": lambda: float(torch.rand(1)),
            "generators": lambda: own.random() * float(torch.rand(1, generator=mine)),
        }[source]

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        ids, labels = [], []
        for row in rows:
            asked, answer = (message["content"] for message in row["messages"])
            words = asked.split(" ")
            kept = [word for word in words[:3] if self.draw() > 0.15] + words[3:]
            prompt = self.tokenizer(" ".join(kept))["input_ids"]
            response = self.tokenizer(f" {answer}<|im_end|>")["input_ids"]
            ids.append(torch.tensor([*prompt, *response]))
            labels.append(torch.tensor([*[-100] * len(prompt), *response]))
        padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
        marks = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        marked = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        return {"input_ids": padded, "attention_mask": marks, "labels": marked}


def collated(folder: Path, source: str, transformed: bool = False, **more: Any) -> Trainer:
    """A plain trainer with a collator that draws, or with a data set whose transform does."""
    made, rows = tokenizer(folder), Dataset.from_list(talks())
    collator = Collator(source, made)
    if transformed:
        drawing, collator = collator, Collator("nothing", made)

        def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {
                "messages": [
                    [said("user", asked["content"] + " Now?" * (drawing.draw() > 0.5)), answer]
                    for asked, answer in batch["messages"]
                ]
            }

        rows.set_transform(transform)
    return Trainer(
        tiny(),
        TrainingArguments(str(folder), remove_unused_columns=False, **{**SETTINGS, **more}),
        train_dataset=rows,
        data_collator=collator,
        processing_class=made,
    )


class Placed(DPOTrainer):
    """Gives positions as transformers counts them, where padding has position 1."""

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        mask = inputs["attention_mask"]
        places = mask.long().cumsum(-1) - 1
        inputs["position_ids"] = places.masked_fill(mask == 0, 1)
        return super().compute_loss(model, inputs, *arguments, **named)


def padded_left(folder: Path, kind: type = DPOTrainer) -> Trainer:
    """The trainer's own batches with their padding on the left."""
    trainer = dpo(folder, kind)
    collate = trainer.data_collator

    def left(rows: list[Any]) -> dict[str, Tensor]:
        batch = collate(rows)
        ends = batch["attention_mask"].sum(1)
        width = batch["input_ids"].shape[1]
        for row, end in enumerate(ends):
            for values in batch.values():
                values[row] = values[row].roll(width - int(end), 0)
        return batch

    trainer.data_collator = left
    return trainer


def watched(
    make: Make, folder: Path, callbacks: Callable[[Trainer], list[Any]] | None = None
) -> Told:
    """The training alone, and watched.

    **Arguments:** `callbacks`: by default probes and forces of the first rows, at every step.
    """
    weights: list[list[Tensor]] = []
    made: list[Any] = []
    for name in ("alone", "watched"):
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)
        (folder / name).mkdir(parents=True)
        trainer = make(folder / name)
        trainer.remove_callback(PrinterCallback)
        if name == "watched":
            made = (callbacks or both)(trainer)
            for callback in made:
                trainer.add_callback(callback)
        trainer.train()
        model = trainer.accelerator.unwrap_model(trainer.model)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    history = trainer.state.log_history
    forces = next((one for one in made if isinstance(one, ForceCallback)), None)
    texts, checks = {}, ()
    if forces is not None and (forces.folder / "ledger.json").exists():
        ledger = read_ledger(forces.folder, forces.folder)
        rows, checks = ledger.rows, ledger.summary.checks
        texts = {name: f"{row.prompt} {row.chosen}" for name, row in rows.items()}
    return Told(
        trainer,
        [line for line in history if "probe/chosen/logp" in line],
        [line for line in history if "ledger/chosen/measured" in line],
        next((one.off for one in made if one.off), ""),
        texts,
        not all(map(torch.equal, *weights)),
        checks,
    )


def both(trainer: Trainer) -> list[Any]:
    return [
        ProbeCallback(trainer, every=1, pairs=ROWS),
        ForceCallback(trainer, every=1, pairs=ROWS),
    ]


def probes_alone(trainer: Trainer) -> list[Any]:
    return [ProbeCallback(trainer, every=1, pairs=ROWS)]


def by_evaluation(trainer: Any) -> Scores:
    """What TRL's trainers of pairs log of their rows."""
    rows = trainer.train_dataset
    made = [name for name in rows.column_names if name.startswith("ref_")]
    found = trainer.evaluate(rows.remove_columns(made))
    return {side: found[f"eval_logps/{side}"] for side in ("chosen", "rejected")}


@torch.no_grad()
def by_loss(trainer: Any) -> Scores:
    """Of trainers whose loss is a mean over labelled tokens: minus its sum, row by row."""
    model, total, texts = trainer.model.eval(), 0.0, 0
    rows = trainer._remove_unused_columns(trainer.train_dataset, description="")
    for row in rows.select(range(min(ROWS, len(rows)))):
        batch = trainer.data_collator([row])
        tokens = int((batch["labels"][:, 1:] >= 0).sum())
        total -= float(trainer.compute_loss(model, batch)) * tokens
        texts += int((batch.get("position_ids", torch.zeros(1)) == 0).sum())
    model.train()
    return {"chosen": total / texts}


def judged(
    make: Make,
    truth: Callable[[Trainer], Scores] | None,
    folder: Path,
    *,
    refused: str = "",
    says: str = "",
    callbacks: Callable[[Trainer], list[Any]] | None = None,
    tolerance: float = 2e-4,
    beside: float = 1e-2,
) -> Verdict:
    """The verdict on a training.

    **Arguments:**

    - `truth`: what the trained model gives to the watched answers, by the trainer.
    - `refused`: a refusal that is right, beside a right account.
    - `says`: a check that is right to fail; any other one is a false alarm.
    - `tolerance`: of probes, in nats.
    - `beside`: what rounding and what no sequence explains may be, as a share of the lines.
    """
    try:
        told = watched(make, folder, callbacks)
    except ConfigError as error:
        good = refused and re.search(refused, str(error))
        return Verdict("ok" if good else "unclear", f"refused: {error}")
    except Exception as error:
        return Verdict("unclear", f"ended by {type(error).__name__}: {error}")
    fault = _fault(told, truth, tolerance, beside, expects=callbacks is not probes_alone)
    if told.off:
        good = refused and re.search(refused, told.off)
        verdict = Verdict("ok" if good else "unclear", f"off: {told.off}")
    else:
        verdict = Verdict("silently_wrong" if fault else "ok", fault)
    alarms = [check for check in told.checks if not says or not re.search(says, check)]
    if verdict.what == "ok" and alarms:
        verdict = Verdict("unclear", f"false alarm: {' '.join(alarms)}")
    if told.weights_differ:
        verdict = Verdict("silently_wrong", f"weights differ. {verdict.detail}", True)
    return verdict


def _fault(
    told: Told,
    truth: Callable[[Trainer], Scores] | None,
    tolerance: float,
    beside: float,
    *,
    expects: bool,
) -> str:
    """What is wrong with what a training told; empty if nothing is."""
    if not told.probes or (expects and len(told.accounts) != STEPS):
        return f"{len(told.probes)} probes, {len(told.accounts)} accounts"
    for kind, score in (truth(told.trainer) if truth else {}).items():
        found = told.probes[-1][f"probe/{kind}/logp"]
        if abs(found - score) > tolerance + 1e-5 * abs(score):
            return f"probe of {kind} {found:.4f}, the trainer's {score:.4f}"
    for line, (before, after) in zip(told.accounts, pairwise(told.probes), strict=False):
        for kind in ("chosen", "rejected"):
            if f"ledger/{kind}/measured" not in line:
                continue
            parts = {part: line[f"ledger/{kind}/{part}"] for part in PARTS}
            measured = line[f"ledger/{kind}/measured"]
            moved = after[f"probe/{kind}/logp"] - before[f"probe/{kind}/logp"]
            size = abs(parts["chosen"]) + abs(parts["rejected"]) + 1e-9
            if abs(sum(parts.values()) - measured) > 1e-4:
                return f"parts of {kind} add up to {sum(parts.values()):.5f}, not {measured:.5f}"
            if abs(measured - moved) > tolerance:
                return f"account of {kind} measures {measured:.5f}, probes {moved:.5f}"
            odd = max(abs(parts["unexplained"]), abs(parts["arithmetic"])) / size
            if odd > beside:
                return f"of {kind} {odd:.1%} of the lines is rounding or unexplained"
    for name, text in told.texts.items():
        number = re.search(r"row-(\d+)", name)
        if number is None or ("?" in text and f"number {int(number[1])}?" not in text):
            return f"{name} is the name of {text[:80]!r}"
    return ""


def of_columns(name: str, folder: Path) -> Verdict:
    """Whether a public data set's columns are read as the pairs in them."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        wrong = public.difference(public.SETS[name], chat_tokenizer("chatml", folder), folder)
    except Exception as error:
        return Verdict("unclear", f"{type(error).__name__}: {error}")
    return Verdict("silently_wrong" if wrong else "ok", wrong)


def of_tool_calls(arguments: Sequence[dict[str, Any]], folder: Path) -> Verdict:
    """Whether calls with some arguments are written as TRL writes those of the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "prompt": [said("user", f"Question {number}?")],
            "chosen": [
                said("assistant", "")
                | {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": a}}]}
            ],
            "rejected": [said("assistant", "No.")],
        }
        for number, a in enumerate(arguments)
    ]
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = chat_tokenizer("qwen3", folder)
    loaded = load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder))
    trained = [
        made.apply_chat_template(row["prompt"] + row["chosen"], tokenize=False) for row in loaded
    ]
    read = [row.prompt + row.chosen for row in public.read_pairs(file, made)]
    return Verdict("ok" if read == trained else "silently_wrong", f"{trained[0]} read as {read[0]}")


def of_no_prompt(folder: Path) -> Verdict:
    """Whether a column that nobody knows is named."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"asked": row["prompt"], "chosen": row["chosen"], "rejected": row["rejected"]}
        for row in pairs()
    ]
    file = public.written(rows, "jsonl", folder)
    try:
        public.read_pairs(file, chat_tokenizer("chatml", folder))
    except ConfigError as error:
        return Verdict("ok" if "asked" in str(error) else "unclear", str(error))
    return Verdict("silently_wrong", "it is read")


def _situations() -> dict[str, Callable[[Path], Verdict]]:
    """Every situation by name."""
    found: dict[str, Callable[[Path], Verdict]] = {}

    def add(name: str, make: Make, truth: Any = None, **how: Any) -> None:
        found[name] = partial(judged, make, truth, **how)

    three, tools = talks(turns=3), talks(turns=2, tools=True)
    split = [{"prompt": r["messages"][:1], "completion": r["messages"][1:]} for r in talks()]
    add("sft: whole conversations", partial(sft, rows=three), by_loss)
    for name, rows in (("one turn", talks()), ("three turns", three), ("tools", tools)):
        only = partial(sft, rows=rows, assistant_only_loss=True)
        add(f"sft: the assistant's turns alone, {name}", only, by_loss)
    alike = partial(sft, rows=three, train_sampling_strategy="group_by_length")
    add("sft: batches of one length", alike, by_loss)
    add("sft: completions alone", partial(sft, rows=split), by_loss)
    cut = partial(sft, rows=three, assistant_only_loss=True, max_length=60)
    add("sft: cut in the second turn", cut, by_loss)
    wrapped = {"packing": True, "packing_strategy": "wrapped", "max_length": 48}
    wrapped_rows = partial(sft, rows=talks(24, 2), assistant_only_loss=True, **wrapped)
    add("sft: wrapped packing", wrapped_rows, by_loss, refused="turn off packing")
    add("sft: wrapped packing, probes", wrapped_rows, by_loss, callbacks=probes_alone)
    packed = partial(sft, rows=talks(6), packing=True, max_length=96)
    add("sft: packed rows", packed, by_loss, refused="turn off packing")
    add("sft: packed rows, probes", packed, by_loss, callbacks=probes_alone)

    add("cpo", partial(of_pairs, CPOTrainer, CPOConfig), by_evaluation)
    # It logs means over tokens, and trains prompts, too.
    add("orpo", partial(of_pairs, ORPOTrainer, ORPOConfig), says="does not mark")
    add("kto", kto, by_evaluation)
    add("gkd", gkd)
    add("reward", reward, refused="are of log-probabilities")

    for source in ("nothing", "python", "numpy", "torch", "generators"):
        add(f"a collator that draws from {source}", partial(collated, source=source))
    transformed = partial(collated, source="generators", transformed=True)
    add("a transform that draws", transformed)
    add("a collator in workers", partial(collated, source="torch", dataloader_num_workers=2))

    repeated = [{**row, "id": f"q{number // 4}"} for number, row in enumerate(pairs())]
    add("ids that repeat", partial(dpo, rows=repeated), by_evaluation)
    add("positions of right padding", partial(dpo, kind=Placed), by_evaluation)
    add("left padding", padded_left, by_evaluation)
    add("left padding with positions", partial(padded_left, kind=Placed), by_evaluation)
    narrow = partial(dpo, model=lambda: tiny().bfloat16(), learning_rate=0.1)
    add("weights in bf16", narrow, None, beside=10)

    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "several losses": {
            "loss_type": ["sigmoid", "sft", "bco_pair"],
            "loss_weights": [1.0, 0.5, 0.2],
        },
        "label smoothing": {"label_smoothing": 0.2},
        "robust": {"loss_type": "robust", "label_smoothing": 0.2},
        "alpha divergence": {"f_divergence_type": "alpha_divergence"},
        "weighting": {"use_weighting": True},
        "reference before": {"precompute_ref_log_probs": True},
        "reference that follows": {"sync_ref_model": True, "ref_model_sync_steps": 1},
        "aot": {"loss_type": "aot"},
        "no clipping": {"max_grad_norm": 0.0},
        "clipping and accumulation": {"max_grad_norm": 0.01, "gradient_accumulation_steps": 2},
        "padding free": {"padding_free": True},
        "noise on embeddings": {"neftune_noise_alpha": 5.0},
        "fused adamw": {"optim": "adamw_torch_fused", "learning_rate": 1e-3},
        "adafactor": {"optim": "adafactor", "learning_rate": 1e-3},
    }
    for name, more in options.items():
        # An optimizer of unknown form does something beside the gradient.
        how = {"beside": 10} if name == "adafactor" else {}
        add(f"dpo: {name}", partial(dpo, **more), by_evaluation, **how)

    two = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    adapters: dict[str, Callable[[], Any]] = {
        "lora": lambda: peft.LoraConfig(r=4, **two),
        "dora": lambda: peft.LoraConfig(r=4, use_dora=True, **two),
        "ia3": lambda: peft.IA3Config(
            target_modules=["k_proj", "down_proj"],
            feedforward_modules=["down_proj"],
            task_type="CAUSAL_LM",
        ),
        "vera": lambda: peft.VeraConfig(r=4, **two),
        "oft": lambda: peft.OFTConfig(oft_block_size=8, r=0, **two),
        "loha": lambda: peft.LoHaConfig(r=4, **two),
        "fourierft": lambda: peft.FourierFTConfig(n_frequency=20, **two),
        "adalora": lambda: peft.AdaLoraConfig(init_r=4, target_r=2, total_step=50, **two),
        "layer norms": lambda: peft.LNTuningConfig(task_type="CAUSAL_LM"),
        "new tokens": lambda: peft.LoraConfig(r=4, trainable_token_indices=[1, 2, 5], **two),
        "saved modules": lambda: peft.LoraConfig(r=4, modules_to_save=["lm_head"], **two),
        "prompt tuning": lambda: peft.PromptTuningConfig(
            num_virtual_tokens=4, task_type="CAUSAL_LM"
        ),
    }
    for name, config in adapters.items():
        how = {"refused": "virtual prompt tokens"} if name == "prompt tuning" else {}
        trained = partial(dpo, peft_config=config, learning_rate=0.2)
        add(f"adapters: {name}", trained, by_evaluation, **how)
    for name in (
        "axolotl_preferences",
        "axolotl_conversation",
        "openrlhf_preferences",
        "swift_preferences",
        "swift_responses",
    ):
        found[f"columns: {name}"] = partial(of_columns, name)
    found["columns: a prompt by another name"] = of_no_prompt
    dates = [{"day": f"2024-05-0{number}"} for number in range(1, 4)]
    found["tool calls: dates"] = partial(of_tool_calls, dates)
    numbers = [{"size": 1}, {"size": 2.5}, {"count": "many"}]
    found["tool calls: numbers"] = partial(of_tool_calls, numbers)
    return found


SITUATIONS = _situations()


def measure(home: Path) -> dict[str, int]:
    """Counts of the verdicts; what is not ok is printed to stderr."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    verdicts: dict[str, Verdict] = {}
    try:
        for number, (name, situation) in enumerate(SITUATIONS.items()):
            try:
                verdicts[name] = situation(home / f"situation-{number}")
            except Exception:
                verdicts[name] = Verdict("unclear", traceback.format_exc(limit=-2))
            if verdicts[name].what != "ok":
                print(name, *verdicts[name], sep="\t", file=sys.stderr)
    finally:
        logging.disable(level)
    found = [verdict.what for verdict in verdicts.values()]
    return {
        "situations": len(found),
        "silently_wrong": found.count("silently_wrong"),
        "unclear": found.count("unclear"),
        "weights_differ": sum(verdict.weights_differ for verdict in verdicts.values()),
    }
