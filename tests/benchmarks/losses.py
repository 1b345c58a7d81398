"""How many losses are those of TRL, whether forces follow them, and what the designed dose costs.

    python -m tests.benchmarks.losses

Needs DYNOLAB_TEST_DATA for the dose's cost. Prints one JSON object on its last line:

- `losses_equal_to_trl`: losses whose value and gradient are those of TRL's own trainer.
- `forces_equal_to_gradient`, `ledger_closes`: share of the objectives whose force on the logits is
  the loss's gradient, and whose responses' gradients make up the step's, both in float64.
- `custom_loss_lines`: of a function that is a loss of one's own.
- `designed_step_cost`: CPU time of a step of `DPOTrainer` with `DesignedDose` over one without, on
  HH with a model of 3M weights; `designed_precomputed_cost`: the same where the reference was
  scored before. `designed_in_trl`: 1 if every step had its dose.
- `remedies_decided`: of remedies × kinds of HH and stories in the kept tables, how many raise or
  lower chosen answers against DPO, held out and, in training, at the same margin.
"""

from __future__ import annotations

import inspect
import json
import re
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from dynolab import DesignedDose, load_data
from dynolab.data.sources.config import DataConfig
from tests.benchmarks.figures import STUDIES, main, real_inputs, run_tests
from tests.objectives import losses

BARS = {
    "losses_equal_to_trl": 26.0,
    "forces_equal_to_gradient": 1.0,
    "ledger_closes": 1.0,
    "designed_in_trl": 1.0,
    "remedies_decided": 0.8,
}
STEPS, WARM = 12, 4


def equal_to_trl(_: Path) -> dict[str, float]:
    """Losses with two seeds, options and mixtures of one loss counted as losses of their own."""
    files = ("test_trl_pair_losses.py", "test_trl_grpo.py")
    tests = run_tests(*(f"tests/objectives/{file}" for file in files), "-k", "trl_s")
    ends: dict[str, set[str]] = {}
    for test in tests:
        loss = re.sub(r"-[05]\]$", "", test["name"].replace("-0.3]", "").replace("-0.0]", ""))
        ends.setdefault(loss, set()).add(test["end"])
    return {"losses_equal_to_trl": sum(end == {"passed"} for end in ends.values())}


def share(test: str, file: str) -> float:
    """Of a test's cases that pass."""
    ends = [one["end"] == "passed" for one in run_tests(f"tests/forces/{file}", "-k", test)]
    return sum(ends) / len(ends)


def remedies(_: Path) -> dict[str, float]:
    """Read from the kept tables of `mitigation_hh.yaml` and `mitigation_stories.yaml`."""
    names = ("hh", "hh-helpful", "stories")
    files = [STUDIES / "results" / f"mitigation-{name}.json" for name in names]
    tables = [json.loads(file.read_text()) for file in files]
    changes = [
        change
        for table in tables
        for name, change in table["estimates"].items()
        if re.fullmatch("(differences/[^/]+/heldout|matched/[^/]+)/chosen", name)
    ]
    decided = sum(change["low"] * change["high"] > 0 for change in changes)
    return {"remedies_decided": decided / len(changes)}


def trained(designed: bool, precomputed: bool) -> tuple[float, bool]:
    """CPU seconds of a step, and whether every step logged a dose."""
    data, folder = real_inputs("data/hh/harmless-base_test.jsonl.gz", "models/stories-3m")
    loaded = load_data(DataConfig(source="file", path=str(data), format="hh"))
    rows = [
        {"prompt": r.prompt, "chosen": r.chosen, "rejected": r.rejected} for r in loaded.pairs[:120]
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    policy, reference = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    with tempfile.TemporaryDirectory() as output:
        trainer = DPOTrainer(
            policy,
            ref_model=reference,
            args=DPOConfig(
                output_dir=output,
                per_device_train_batch_size=8,
                max_steps=STEPS,
                logging_steps=1,
                max_length=256,
                learning_rate=1e-4,
                precompute_ref_log_probs=precomputed,
                bf16=False,
                use_cpu=True,
                report_to=[],
                disable_tqdm=True,
                save_strategy="no",
            ),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        )
        if designed:
            trainer.add_callback(DesignedDose(trainer))
        spent: list[float] = []
        plain_step = trainer.training_step

        def step(*arguments: object, **named: object) -> object:
            began = time.process_time()
            loss = plain_step(*arguments, **named)
            spent.append(time.process_time() - began)
            return loss

        trainer.training_step = step
        trainer.train()
    doses = sum("dose/rejected" in line for line in trainer.state.log_history)
    return sum(spent[WARM:]) / len(spent[WARM:]), doses == STEPS


def costs(_: Path) -> dict[str, float]:
    torch.set_num_threads(1)
    figures, every = {}, True
    for name, precomputed in (("step", False), ("precomputed", True)):
        turns = [(trained(False, precomputed), trained(True, precomputed)) for _ in range(2)]
        every &= all(dosed[1] for _, dosed in turns)
        figures[f"designed_{name}_cost"] = sum(dosed[0] for _, dosed in turns) / sum(
            plain[0] for plain, _ in turns
        )
    return figures | {"designed_in_trl": float(every)}


def exact(_: Path) -> dict[str, float]:
    """Shares of the objectives whose forces and responses make up the gradient."""
    lines = [line for line in inspect.getsource(losses.margin).splitlines() if line.strip()]
    return {
        "forces_equal_to_gradient": share("closed_form", "test_acceptance.py"),
        "ledger_closes": share("make_up_its_gradient", "test_ledger.py"),
        "custom_loss_lines": len(lines),
    }


if __name__ == "__main__":
    parts = {"equal_to_trl": equal_to_trl, "exact": exact, "remedies": remedies, "costs": costs}
    main(parts, at_least=BARS, at_most={"custom_loss_lines": 10, "designed_step_cost": 1.35})
