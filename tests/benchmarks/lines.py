"""Lines beside what leaving sequences out does, in one step and in a whole training.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.lines [--only steps trainings long ...]

FOLDER holds `models/tinystories-656k`, `models/stories-3m` and `data/hh`, of which short harmless
pairs are trained on, in float32, with gradients clipped to norm 1. Prints one JSON object on its
last line.

`steps`: steps 1, 2, 3, 6 and 12 of trainings in batches of 6, over models × SGD, SGD with momentum,
RMSprop, AdamW × SFT, DPO, GRPO on groups of both answers × 3 seeds. Truth is torch's clipped step
with a response and without it, in float64, and forwards of the mean log π of 8 answers after both:

- `line_over_removal`: slope of a step's lines over the truth, its median over steps and its ends;
  `line_removal_correlation`: their least correlation. `group_…`: the same of thirds of the pairs
  that are left out together.
- `share_over_removal_N`: the same of shares of AdamW's step N, with clip factor and second moment
  frozen; a median. `together_share_N`: |together| over Σ |lines| of all optimizers; a median.
- `closure_max`: largest |Σ of a step's parts − measured| over a functional's path, of `trainings`,
  too.

`trainings`: 24 steps of DPO on 32 pairs in batches of 4, tinystories-656k, seeds for the order and
the groups; trained again without each of 24 groups of 6 pairs and without each of 12 single pairs,
whose loss is left out of the batches and denominators as they were. By method and optimizer, means
over seeds with their 95 % interval, `…_low` and `…_high`:

- `lds_heldout_…`: mean, over 6 held-out chosen answers, of the rank correlation over groups of a
  pair's sums with what retraining changed; `lds_train_…`: over 6 that are trained on;
  `one_out_correlation_…`: of single pairs, over all 12. `seconds_…`: a method's CPU seconds.
- Methods: `lines`, of pairs; `group_lines`, of each group that is left out together, in every step
  (no single ones); `shares`, of steps whose clip factor and second moment are frozen; `tracin`,
  Σ η ⟨∇q, g⟩; `words`, common ones with the chosen answer less those with the rejected; `random`;
  with DYNOLAB_BERGSON, as of `bergson`, its `ekfac`, `trackstar` and `tracin`.

`long`: `lds_long_…`, mean over all 12 answers, of 100 steps at 2e-4 on 120 pairs without groups of
24, one seed, with the ends of a bootstrap over groups. The metagradient goes through SGD alone, so
the same is there of SGD with momentum, `lds_long_momentum_…`, beside the lines of that training.

`cost`: `cost_over_today_…`: seconds over those of the same code with shares for lines and no norms
of gradients without a sequence, the median of rounds, of a ledger, ForceCallback in TRL's DPO, and a
step's forces with pushes of its examples. `sharded`: as of `sharded`.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from datasets import Dataset
from jaxtyping import Float
from torch import Tensor
from trl import DPOConfig as TRLConfig, DPOTrainer

from dynolab.data.encode import Encoder
from dynolab.data.rows import Example
from dynolab.data.sources.load import DataConfig, load_data
from dynolab.forces import PolicyFunction, step_forces
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.metagradient import Metagradient
from dynolab.forces.ledger.pushes import example_pushes
from dynolab.forces.ledger.responses import gradients_of
from dynolab.forces.ledger.step_account import StepAccount, StepMade
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.forces.ledger.trainer_passes import TrainerPasses
from dynolab.forces.step import split
from dynolab.forces.step.optimizers import Removal
from dynolab.integrations.forces import ForceCallback
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig
from dynolab.objectives.policy_gradient import group_advantages
from dynolab.statistics import mean_interval, rank_correlation
from dynolab.training.config import LoopConfig, OptimizerConfig
from dynolab.training.step_batch import RecordedCompletion
from dynolab.training.step_record import RecordedExample, RecordedGroup, StepRecord
from models.language import load_language_model, load_tokenizer
from tasks.counterfactual import lds
from tests.benchmarks import bergson, sharded
from tests.benchmarks.figures import interleaved, main, ratio, real_inputs, spread, timed
from tests.forces.brute_ledger import dose_gradients, torch_step
from tests.forces.small_models import train_batches
from tests.training.small import probes_of

MODELS = {"tinystories-656k": 1.0, "stories-3m": 0.1}
"""And what their learning rates are multiplied by."""
OPTIMIZERS = {
    "sgd": OptimizerConfig(name="sgd", learning_rate=3e-3),
    "momentum": OptimizerConfig(name="sgd", learning_rate=3e-4, momentum=0.9),
    "rmsprop": OptimizerConfig(name="rmsprop", learning_rate=1e-5),
    "adamw": OptimizerConfig(name="adamw", learning_rate=1e-4),
}
"""Of single steps: no step is so long that slopes at its ends say little of what is between."""
TRAININGS = {"sgd": 3e-3, "rmsprop": 1e-4, "adamw": 3e-4}
"""Learning rates of whole trainings."""
OBJECTIVES = {"sft": SFTConfig(), "dpo": DPOConfig(beta=0.1), "grpo": GRPOConfig()}
SEEDS = range(3)
STEPS = (1, 2, 3, 6, 12)
BATCH, ROWS, ANSWERS = 6, 40, 8
"""Of single steps."""
WATCHED, SINGLE, GROUPS = 6, 12, 24
"""Answers of a kind, single pairs and groups of whole trainings."""
PROMPT, ANSWER, LEAST = 250, 150, 10
"""Characters of HH's texts."""
REPEATS = 5


@dataclass(frozen=True)
class Pairs:
    """The first pairs of HH, their chosen answers' words, and a model with a frozen copy of it."""

    model: Path
    rows: list[Example]
    examples: list[RecordedExample]
    encoder: Encoder
    policy: PolicyFunction

    @classmethod
    def read(cls, model: str, count: int) -> Pairs:
        """Pairs with short prompts, their answers cut, and DPO's reference: the model itself."""
        folder, file = real_inputs(f"models/{model}", "data/hh/harmless-base_test.jsonl.gz")
        data = DataConfig(source="file", path=str(file), format="hh", heldout_rows=20)
        encoder = Encoder(load_tokenizer(folder), 512, "drop")
        policy = PolicyFunction(load_language_model(folder))
        rows, examples = [], []
        for row in load_data(data).pairs:
            texts = {"chosen": row.chosen[:ANSWER], "rejected": row.rejected[:ANSWER]}
            pair = encoder.example(row.model_copy(update=texts))
            short = len(row.prompt) <= PROMPT and min(map(len, texts.values())) >= LEAST
            if pair is None or not short:
                continue
            batch = policy.batch([pair.chosen, pair.rejected])
            logps = policy.logps({}, batch).split(batch.sequence_length.tolist())
            chosen, rejected = (values.tolist() for values in logps)
            rows.append(row.model_copy(update=texts))
            examples.append(
                RecordedExample(
                    id=pair.id,
                    chosen=pair.chosen,
                    rejected=pair.rejected,
                    chosen_reference=chosen,
                    rejected_reference=rejected,
                )
            )
            if len(examples) == count:
                break
        return cls(folder, rows, examples, encoder, policy)

    def train(
        self, config: LoopConfig, batches: Sequence[Sequence[Any]], without: Collection[str] = ()
    ) -> Iterator[StepRecord]:
        """Steps from the model's own weights."""
        return train_batches(load_language_model(self.model), config, batches, without)


def training(optimizer: str, objective: str = "dpo", **changes: float) -> LoopConfig:
    config = OPTIMIZERS[optimizer].model_copy(update=changes)
    return LoopConfig(objective=OBJECTIVES[objective], optimizer=config, clip_norm=1.0)


def as_group(pair: RecordedExample) -> RecordedGroup:
    """Both answers as completions of their prompt, with rewards 1 and 0."""
    up, down = group_advantages(torch.tensor([1.0, 0.0])).tolist()
    completions = tuple(
        RecordedCompletion(encoded=answer, advantage=[advantage] * answer.response_length)
        for answer, advantage in ((pair.chosen, up), (pair.rejected, down))
    )
    return RecordedGroup(id=pair.id, completions=completions)


def drawn(rows: Sequence[Any], steps: int, size: int, seed: int) -> list[list[Any]]:
    """Batches: all rows in random order, before any of them again."""
    random, order = np.random.default_rng(seed), list[int]()
    while len(order) < steps * size:
        order += random.permutation(len(rows)).tolist()
    return [[rows[n] for n in order[at * size : (at + 1) * size]] for at in range(steps)]


@contextmanager
def frozen_shares(lines: Callable[..., Tensor] | None = None) -> Iterator[None]:
    """Lines are shares of steps whose clip factor and second moment are frozen, which takes no
    norms of gradients without a sequence."""

    def shares(self: Removal, parts: Tensor, factors: Tensor) -> Tensor:
        return self.shares(parts)

    def sides(made: Any, parts: Tensor, *_: Any) -> Tensor:
        return -made.scale * parts

    def parts_of(self: split.UpdateSplit) -> dict[str, dict[str, Tensor]]:
        return {name: getattr(self, name) for name in split.PARTS if name != "from_together"}

    with ExitStack() as changed:
        for where, name, instead in (
            (Removal, "lines", lines or shares),
            (StepMade, "factors", None),
            (TrainerPasses, "_factors", lambda self, again, *_: torch.zeros(again.sequences)),
            (split, "changes_without", sides),
            (split.UpdateSplit, "parts", parts_of),
        ):
            changed.enter_context(patch.object(where, name, instead))
        yield


# Single steps


@dataclass(frozen=True)
class Removed:
    """A step's account, lines and what leaving out does: of responses, and of groups of pairs."""

    account: StepAccount
    shares: Float[np.ndarray, " responses"]
    lines: Float[np.ndarray, " responses"]
    truth: Float[np.ndarray, " responses"]
    group_lines: Float[np.ndarray, " groups"]
    group_truth: Float[np.ndarray, " groups"]

    @classmethod
    def of(cls, record: StepRecord, policy: PolicyFunction, exact: PolicyFunction, q: Functional):
        ids = [example.id for example in record.examples]
        groups = {str(n): {ids[n], ids[n - 1]} for n in range(len(ids))}
        account = Ledger(policy, [q], groups=groups).enter(record)
        with frozen_shares():
            shares = Ledger(policy, [q]).enter(record).lines[:, 0].numpy()
        gradients = dose_gradients(record, exact)
        batch = exact.batch([term.sequence for term in q.terms])

        @torch.no_grad()
        def end(without: Collection[int] = ()) -> float:
            rest = [gradient for n, gradient in enumerate(gradients) if n not in without]
            weights = {name: weight for name, (weight, _) in torch_step(record, rest).items()}
            return float(exact.logps(weights, batch).sum()) / len(q.terms)

        members = [
            [place for place, label in enumerate(account.responses) if label.id in group]
            for group in groups.values()
        ]
        whole = end()
        return cls(
            account,
            shares,
            account.lines[:, 0].numpy(),
            np.array([whole - end([place]) for place in range(len(gradients))]),
            torch.cat(list(account.groups.values())).numpy(),
            np.array([whole - end(places) for places in members]),
        )


def slope(lines: Float[np.ndarray, " parts"], truth: Float[np.ndarray, " parts"]) -> float:
    return float(lines @ truth / (truth @ truth))


def single_steps(_: Path) -> dict[str, float]:
    """Figures of steps."""
    found: list[tuple[str, Removed]] = []
    for model, factor in MODELS.items():
        pairs = Pairs.read(model, ROWS + ANSWERS)
        exact = PolicyFunction(load_language_model(pairs.model), torch.float64)
        q = Functional.mean("", [example.chosen for example in pairs.examples[ROWS:]])
        for objective in OBJECTIVES:
            rows = pairs.examples[:ROWS]
            if objective == "grpo":
                rows = [as_group(row) for row in rows]
            for optimizer, config in OPTIMIZERS.items():
                config = training(
                    optimizer, objective, learning_rate=factor * config.learning_rate
                )
                for seed in SEEDS:
                    batches = drawn(rows, STEPS[-1], BATCH, seed)
                    for record in pairs.train(config, batches):
                        if record.facts.step + 1 in STEPS:
                            own = Removed.of(record, pairs.policy, exact, q)
                            found.append((optimizer, own))
                            told(model, objective, optimizer, seed, own)
    steps = [own for _, own in found]
    lines = [(own.lines, own.truth) for own in steps]
    groups = [(own.group_lines, own.group_truth) for own in steps]
    figures: dict[str, float] = {}
    for name, each in (("", lines), ("group_", groups)):
        correlations = [np.corrcoef(*both)[0, 1] for both in each]
        figures |= spread(f"{name}line_over_removal", [slope(*both) for both in each])
        figures |= {f"{name}line_removal_correlation": float(min(correlations))}
    for number in STEPS:
        at = [(name, own) for name, own in found if own.account.step + 1 == number]
        shares = [slope(own.shares, own.truth) for name, own in at if name == "adamw"]
        together = [together_share(own.account) for _, own in at]
        figures |= {
            f"share_over_removal_{number}": statistics.median(shares),
            f"together_share_{number}": statistics.median(together),
        }
    return figures | {"closure_max": max(closure(own.account) for own in steps)}


def told(model: str, objective: str, optimizer: str, seed: int, own: Removed) -> None:
    """A step's figures."""
    print(
        model,
        objective,
        optimizer,
        seed,
        f"step {own.account.step + 1}: lines {slope(own.lines, own.truth):.4f}",
        f"{np.corrcoef(own.lines, own.truth)[0, 1]:.6f}",
        f"groups {slope(own.group_lines, own.group_truth):.4f}",
        f"{np.corrcoef(own.group_lines, own.group_truth)[0, 1]:.6f}",
        f"shares {slope(own.shares, own.truth):.3f} together {together_share(own.account):.3f}",
        f"measured {float(own.account.measured[0]):.4f} closure {closure(own.account):.1e}",
        file=sys.stderr,
        flush=True,
    )


def together_share(account: StepAccount) -> float:
    return float(account.together[0].abs() / account.lines[:, 0].abs().sum())


def closure(account: StepAccount) -> float:
    parts = account.parts()
    measured = parts.pop("measured")
    return float(((sum(parts.values()) - measured) / measured).abs().max())


# Whole trainings

Sums = Float[np.ndarray, "sets functionals"]


@dataclass(frozen=True)
class Retrained:
    """A training on pairs, its records, and what sets of pairs did to its end by retraining."""

    pairs: Pairs
    config: LoopConfig
    records: list[StepRecord]
    functionals: list[Functional]
    sets: list[list[str]]
    effects: Sums

    @classmethod
    def of(
        cls, pairs: Pairs, config: LoopConfig, steps: int, size: int, singles: int, seed: int
    ) -> Retrained:
        """`GROUPS` sets of `size` pairs and `singles` of one; the last pairs are not trained on."""
        rows = pairs.examples[:-WATCHED]
        batches = drawn(rows, steps, 4, seed)
        answers = [row.chosen for row in pairs.examples[-WATCHED:] + rows[:WATCHED]]
        policy, batch = pairs.policy, pairs.policy.batch(answers)

        def end(record: StepRecord) -> Float[np.ndarray, " functionals"]:
            values = policy.logps(policy.cast(record.after), batch)
            return batch.sequence_sum(values).double().numpy()

        def retrained(ids: Collection[str]) -> Float[np.ndarray, " functionals"]:
            *_, last = pairs.train(config, batches, ids)
            return end(last)

        random, ids = np.random.default_rng(seed), [row.id for row in rows]
        sets = [random.choice(ids, size, replace=False).tolist() for _ in range(GROUPS)]
        sets += [[name] for name in ids[:singles]]
        records = list(pairs.train(config, batches))
        whole = end(records[-1])
        effects = np.stack([whole - retrained(some) for some in sets])
        functionals = [Functional.mean(str(n), [own]) for n, own in enumerate(answers)]
        return cls(pairs, config, records, functionals, sets, effects)

    def lines(self, *, together: bool = False, plain: bool = False) -> tuple[Sums, LedgerTables]:
        """The sets' sums of their pairs' lines; of lines of sets `together`.

        `plain`: of steps of gradient descent in the place of the training's own.
        """
        sets = {str(n): some for n, some in enumerate(self.sets)}
        groups = sets if together else {name: [name] for name in self.ids}
        ledger = Ledger(self.pairs.policy, self.functionals, groups=groups)
        tables = LedgerTables([q.name for q in self.functionals])
        sums = dict.fromkeys(groups, torch.zeros(len(self.functionals), dtype=torch.float64))
        for record in reversed(self.records):
            account = ledger.enter(record.as_gradient_step() if plain else record)
            tables.add(account)
            sums |= {name: sums[name] + lines for name, lines in account.groups.items()}
        values = {name: lines.numpy() for name, lines in sums.items()}
        if together:
            return np.stack([values[name] for name in sets]), tables
        return self.summed(values), tables

    @property
    def ids(self) -> list[str]:
        return [row.id for row in self.pairs.examples[:-WATCHED]]

    def summed(self, of_pairs: Mapping[str, Float[np.ndarray, " functionals"]]) -> Sums:
        return np.stack([sum(of_pairs[name] for name in some) for some in self.sets])

    def shares(self) -> Sums:
        with frozen_shares():
            return self.lines()[0]

    def words(self) -> Sums:
        """Common words over all words, of the chosen less of the rejected answer."""

        def alike(one: str, other: str) -> float:
            first, second = set(one.split()), set(other.split())
            return len(first & second) / len(first | second)

        rows = self.pairs.rows
        answers = [row.chosen for row in rows[-WATCHED:] + rows[:WATCHED]]
        return self.summed(
            {
                row.id: np.array(
                    [alike(row.chosen, own) - alike(row.rejected or "", own) for own in answers]
                )
                for row in rows[:-WATCHED]
            }
        )

    def metagradient(self) -> Sums:
        metagradient = Metagradient(self.pairs.policy, self.functionals)
        sums = {name: np.zeros(len(self.functionals)) for name in self.ids}
        for record in reversed(self.records):
            step = metagradient.enter(record)
            for name, nats in zip(step.examples, step.nats.double().numpy(), strict=True):
                sums[name] = sums[name] + nats
        return self.summed(sums)

    def bergson(self, folder: Path) -> Iterator[tuple[str, Sums, float]]:
        """What Bergson's methods say, and their CPU seconds."""
        after = folder / "after"
        model = load_language_model(self.pairs.model)
        model.load_state_dict(self.records[-1].after, strict=False)
        model.save_pretrained(after)
        self.pairs.encoder.tokenizer.save_pretrained(after)
        answers = [q.terms[0].sequence for q in self.functionals]
        by_method, took = bergson.pair_scores(
            Path(os.environ["DYNOLAB_BERGSON"]),
            {"before": self.pairs.model, "after": after},
            self.config.objective.beta,
            self.pairs.examples[:-WATCHED],
            answers,
        )
        for method in ("ekfac", "trackstar", "tracin"):
            scores = dict(zip(self.ids, by_method[method], strict=True))
            name = f"bergson {method}"
            yield name.replace(" ", "_"), self.summed(scores), took[name]


def compared(retrained: Retrained, folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """Every method's figures, and the closure of the account."""
    shape = len(retrained.ids), len(retrained.functionals)
    noise = dict(zip(retrained.ids, np.random.default_rng(seed).normal(size=shape), strict=True))
    lines = list[LedgerTables]()

    def own() -> Sums:
        sums, tables = retrained.lines()
        lines.append(tables)
        return sums

    methods: dict[str, Callable[[], Sums]] = {
        "lines": own,
        "group_lines": lambda: retrained.lines(together=True)[0],
        "shares": retrained.shares,
        "tracin": lambda: retrained.lines(plain=True)[0],
        "words": retrained.words,
        "random": lambda: retrained.summed(noise),
    }
    if retrained.config.optimizer.name == "sgd" and len(retrained.records) > 50:
        methods["metagradient"] = retrained.metagradient
    made = [(name, *timed(method)[::-1]) for name, method in methods.items()]
    if "DYNOLAB_BERGSON" in os.environ:
        made += retrained.bergson(folder)
    figures = {"account": {"closure_max": lines[0].summary().closure}}
    for name, sums, took in made:
        figures[name] = agreement(sums, retrained.effects) | {"seconds": took}
    return figures


def agreement(sums: Sums, effects: Sums) -> dict[str, float]:
    predicted, measured = sums[:GROUPS].T, effects[:GROUPS].T
    ranks = rank_correlation(predicted, measured)
    _, low, high = lds(predicted, measured)
    figures = {
        "lds_heldout": float(np.mean(ranks[:WATCHED])),
        "lds_train": float(np.mean(ranks[WATCHED:])),
        "lds": float(np.mean(ranks)),
        "lds_low": low,
        "lds_high": high,
        "scale": float(np.median([slope(*both) for both in zip(predicted, measured)])),
    }
    if len(sums) > GROUPS:
        singles = zip(sums[GROUPS:].T, effects[GROUPS:].T, strict=True)
        figures["one_out_correlation"] = float(np.mean([np.corrcoef(*both)[0, 1] for both in singles]))
    return figures
