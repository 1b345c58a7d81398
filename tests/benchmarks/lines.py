"""Lines beside what leaving sequences out does, in one step and in a whole training.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.lines [--only steps trainings long ...]

FOLDER holds `models/tinystories-656k`, `models/stories-3m` and `data/hh`, of which short harmless
pairs are trained on, in float32, with gradients clipped to norm 1. Prints one JSON object on its
last line, and what it is made of to stderr.

`steps`: steps 1, 2, 3, 6 and 12 of trainings in batches of 6, over models × SGD, SGD with momentum,
RMSprop, AdamW × SFT, DPO, GRPO on groups of both answers × 3 seeds. Truth is torch's clipped step
with a response and without it, in float64, and forwards of the mean log π of 8 answers after both:

- `line_over_removal`: slope of a step's lines over the truth, its median over steps and its ends;
  `line_removal_correlation`: their least correlation. `group_…`: the same of thirds of the pairs
  that are left out together.
- `share_over_removal_N`: the same of shares of AdamW's step N, with clip factor and second moment
  frozen; a median. `together_share_N`: |together| over Σ |lines| of all optimizers; a median.
- `closure_max`: largest |Σ of a step's parts − measured| over Σ |lines|.

`trainings`: 24 steps of DPO on 32 pairs in batches of 4, tinystories-656k; trained again without
each of 24 groups of 6 pairs and each of 12 single pairs, whose loss is left out of batches and
denominators as they were. By optimizer, means over seeds with their 95 % interval:

- `lds_heldout_…`: mean, over 6 held-out chosen answers, of the rank correlation over groups of the
  sum of a group's lines with what retraining changed; `lds_train_…`: over 6 that are trained on;
  `one_out_correlation_…`: of single pairs, over all 12; `scale_…`: median slope of sums over
  changes; `seconds_…`: CPU seconds. `closure_max_…`: over a functional's path.
- `…_METHOD`: the same of `group_lines`, in which a group is left out together; `shares`, of steps
  whose clip factor and second moment are frozen; `tracin`, Σ η ⟨∇q, g⟩; `words`, common ones with
  the chosen answer less those with the rejected; `another_order`, what leaving the same pairs out
  of batches in another order changed, which bounds what does not know the order; `random`; and,
  with DYNOLAB_BERGSON, its `ekfac`, `trackstar` and `tracin`, as of `bergson`.

`long`: the same of 100 steps on 120 pairs without groups of 24, one seed: `lds_long_…` is the mean
over all 12 answers, `lds_low_long_…` and `lds_high_long_…` the ends of a bootstrap over groups. The
metagradient goes through SGD alone, so that it is there of SGD with momentum, beside the lines of
that training.

`cost`: `cost_over_today_…`: CPU seconds over those of the same code with shares for lines and no
norms of gradients without a sequence, of a ledger, of ForceCallback in TRL's DPO, and of a step's
forces with the pushes of its examples. `sharded`: as of `sharded`.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
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
from dynolab.forces.ledger.entries import StepAccount
from dynolab.forces.ledger.functional import Functional
from dynolab.forces.ledger.metagradient import Metagradient
from dynolab.forces.ledger.pushes import example_pushes
from dynolab.forces.ledger.responses import gradients_of
from dynolab.forces.ledger.step_account import StepMade
from dynolab.forces.ledger.tables import LedgerTables
from dynolab.forces.ledger.trainer_passes import TrainerPasses
from dynolab.forces.step import split
from dynolab.forces.step.optimizers import Removal
from dynolab.integrations.forces import ForceCallback
from dynolab.objectives import DPOConfig, GRPOConfig, SFTConfig
from dynolab.objectives.policy_gradient import group_advantages
from dynolab.statistics import lds, mean_interval, rank_correlation
from dynolab.training.config import LoopConfig, OptimizerConfig
from dynolab.training.step_batch import RecordedCompletion
from dynolab.training.step_record import RecordedExample, RecordedGroup, StepRecord
from models.language import load_language_model, load_tokenizer
from tests.benchmarks import sharded
from tests.benchmarks.bergson_pairs import pair_scores
from tests.benchmarks.figures import in_turns, main, ratio, real_inputs, spread
from tests.benchmarks.speed import cpu_seconds
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
LONG = {"momentum": 3e-4, "adamw": 2e-4}
"""Learning rates of whole trainings."""
OBJECTIVES = {"sft": SFTConfig(), "dpo": DPOConfig(beta=0.1), "grpo": GRPOConfig()}
SEEDS = range(3)
STEPS = (1, 2, 3, 6, 12)
ROWS, ANSWERS = 40, 8
"""Of single steps."""
WATCHED, SINGLE, GROUPS = 6, 12, 24
"""Answers of a kind, single pairs and groups of whole trainings."""
PROMPT, ANSWER, LEAST = 250, 150, 10
"""Characters of HH's texts."""
QUOTES = str.maketrans("", "", "‘’“”")
"""Which the smaller model has no token for."""
REPEATS = 5
ANOTHER = 1_000
"""What is added to a seed for batches in another order."""

Sums = Float[np.ndarray, "sets functionals"]


@dataclass(frozen=True)
class Pairs:
    """Pairs of HH, and a model that reads them, DPO's reference."""

    model: Path
    rows: list[Example]
    examples: list[RecordedExample]
    encoder: Encoder
    policy: PolicyFunction

    @classmethod
    def read(cls, model: str, count: int) -> Pairs:
        """The first pairs with short prompts and known characters, their answers cut."""
        folder, file = real_inputs(f"models/{model}", "data/hh/harmless-base_test.jsonl.gz")
        data = DataConfig(source="file", path=str(file), format="hh", heldout_rows=20)
        encoder = Encoder(load_tokenizer(folder), 512, "drop")
        unknown = encoder.tokenizer.unk_token_id
        pairs = cls(folder, [], [], encoder, PolicyFunction(load_language_model(folder)))
        for row in load_data(data).pairs:
            texts = row.prompt, row.chosen[:ANSWER], (row.rejected or "")[:ANSWER]
            if len(row.prompt) > PROMPT or min(map(len, texts)) < LEAST:
                continue
            plain = [text.translate(QUOTES) for text in texts]
            cut = Example(id=row.id, prompt=plain[0], chosen=plain[1], rejected=plain[2])
            pair = encoder.example(cut)
            if pair is None or unknown in pair.chosen.ids + pair.rejected.ids:
                continue
            batch = pairs.policy.batch([pair.chosen, pair.rejected])
            logps = pairs.policy.logps({}, batch).split(batch.sequence_length.tolist())
            pairs.rows.append(cut)
            pairs.examples.append(
                RecordedExample(
                    id=pair.id,
                    chosen=pair.chosen,
                    rejected=pair.rejected,
                    chosen_reference=logps[0].tolist(),
                    rejected_reference=logps[1].tolist(),
                )
            )
            if len(pairs.rows) == count:
                break
        return pairs

    def train(
        self, config: LoopConfig, batches: Sequence[Sequence[Any]], without: Collection[str] = ()
    ) -> Iterator[StepRecord]:
        """Steps from the model's own weights."""
        return train_batches(load_language_model(self.model), config, batches, without)


def training(optimizer: str, rate: float, objective: str = "dpo") -> LoopConfig:
    config = OPTIMIZERS[optimizer].model_copy(update={"learning_rate": rate})
    return LoopConfig(objective=OBJECTIVES[objective], optimizer=config, clip_norm=1.0)


def as_group(pair: RecordedExample) -> RecordedGroup:
    """Both answers as completions of their prompt, with rewards 1 and 0."""
    advantages = group_advantages(torch.tensor([1.0, 0.0])).tolist()
    completions = tuple(
        RecordedCompletion(encoded=answer, advantage=[advantage] * answer.response_length)
        for answer, advantage in zip((pair.chosen, pair.rejected), advantages, strict=True)
    )
    return RecordedGroup(id=pair.id, completions=completions)


def drawn(rows: Sequence[Any], steps: int, size: int, seed: int) -> list[list[Any]]:
    """Batches: all rows in random order, before any of them again."""
    random, order = np.random.default_rng(seed), list[int]()
    while len(order) < steps * size:
        order += random.permutation(len(rows)).tolist()
    return [[rows[n] for n in order[at * size : (at + 1) * size]] for at in range(steps)]


@contextmanager
def frozen_shares(*, removals: bool = True) -> Iterator[None]:
    """Lines are shares of steps whose clip factor and second moment are frozen, which takes no
    norms of gradients without a sequence.

    **Arguments:** `removals`: off where shares are computed beside lines, which then are zero.
    """

    def shares(self: Removal, parts: Tensor, factors: Tensor) -> Tensor:
        return self.shares(parts) if removals else torch.zeros(len(self.slopes), len(parts))

    def sides(made: Any, parts: Tensor, *_: Any) -> Tensor:
        return -made.scale * parts

    def parts_of(self: split.UpdateSplit) -> dict[str, dict[str, Tensor]]:
        return {name: getattr(self, name) for name in split.PARTS if name != "from_together"}

    def no_norms(self: Any, again: Any, *_: Any) -> Tensor:
        return torch.zeros(again.sequences, dtype=torch.float64)

    with ExitStack() as changed:
        for where, name, instead in (
            (Removal, "lines", shares),
            (StepMade, "factors", None),
            (TrainerPasses, "_factors", no_norms),
            (split, "changes_without", sides),
            (split.UpdateSplit, "parts", parts_of),
        ):
            changed.enter_context(patch.object(where, name, instead))
        yield


@dataclass(frozen=True)
class Removed:
    """A step's account; its responses' lines, shares and truth, and those of its groups."""

    account: StepAccount
    shares: Float[np.ndarray, " responses"]
    truth: Float[np.ndarray, " responses"]
    of_groups: Float[np.ndarray, " groups"]

    @classmethod
    def of(
        cls, record: StepRecord, policy: PolicyFunction, exact: PolicyFunction, q: Functional
    ) -> Removed:
        ids = [example.id for example in record.examples]
        groups = {str(n): {ids[n], ids[n - 1]} for n in range(len(ids))}
        account = Ledger(policy, [q], groups=groups).enter(record)
        shares = account.lines
        if record.facts.optimizer.name == "adamw":
            with frozen_shares():
                shares = Ledger(policy, [q]).enter(record).lines
        gradients = dose_gradients(record, exact)
        batch = exact.batch([term.sequence for term in q.terms])

        @torch.no_grad()
        def end(without: Collection[int] = ()) -> float:
            rest = [gradient for n, gradient in enumerate(gradients) if n not in without]
            weights = {name: weight for name, (weight, _) in torch_step(record, rest).items()}
            return float(exact.logps(weights, batch).sum()) / len(q.terms)

        names = [label.id for label in account.responses]
        members = [[n for n, name in enumerate(names) if name in own] for own in groups.values()]
        whole = end()
        truth = np.array([whole - end([n]) for n in range(len(names))])
        of_groups = np.array([whole - end(places) for places in members])
        return cls(account, shares[:, 0].numpy(), truth, of_groups)

    @property
    def figures(self) -> dict[str, float]:
        lines = self.account.lines[:, 0].numpy()
        groups = torch.cat([*self.account.groups.values()]).numpy()
        parts = self.account.parts()
        measured, size = float(parts.pop("measured")), float(abs(lines).sum())
        return {
            "line_over_removal": slope(lines, self.truth),
            "line_removal_correlation": float(np.corrcoef(lines, self.truth)[0, 1]),
            "group_line_over_removal": slope(groups, self.of_groups),
            "group_line_removal_correlation": float(np.corrcoef(groups, self.of_groups)[0, 1]),
            "share_over_removal": slope(self.shares, self.truth),
            "together_share": float(abs(self.account.together)) / size,
            "closure_max": abs(float(sum(parts.values())) - measured) / size,
            "measured": measured,
        }


def slope(predicted: Float[np.ndarray, " n"], measured: Float[np.ndarray, " n"]) -> float:
    return float(predicted @ measured / (measured @ measured))


def single_steps(_: Path) -> dict[str, float]:
    """Figures of steps."""
    found: list[tuple[str, int, dict[str, float]]] = []
    for model, factor in MODELS.items():
        pairs = Pairs.read(model, ROWS + ANSWERS)
        exact = PolicyFunction(load_language_model(pairs.model), torch.float64)
        q = Functional.mean("", [example.chosen for example in pairs.examples[ROWS:]])
        for objective, optimizer, seed in product(OBJECTIVES, OPTIMIZERS, SEEDS):
            rows = pairs.examples[:ROWS]
            batches = drawn(
                [as_group(row) for row in rows] if objective == "grpo" else rows, STEPS[-1], 6, seed
            )
            rate = factor * OPTIMIZERS[optimizer].learning_rate
            for record in pairs.train(training(optimizer, rate, objective), batches):
                step = record.facts.step + 1
                if step in STEPS:
                    figures = Removed.of(record, pairs.policy, exact, q).figures
                    found.append((optimizer, step, figures))
                    print(model, objective, optimizer, seed, step, figures, file=sys.stderr)

    def column(name: str, at: int | None = None, optimizer: str | None = None) -> list[float]:
        return [
            figures[name]
            for of, step, figures in found
            if at in (None, step) and optimizer in (None, of)
        ]

    figures = {
        "line_removal_correlation": min(column("line_removal_correlation")),
        "group_line_removal_correlation": min(column("group_line_removal_correlation")),
        "closure_max": max(column("closure_max")),
        **spread("line_over_removal", column("line_over_removal")),
        **spread("group_line_over_removal", column("group_line_over_removal")),
    }
    for step in STEPS:
        shares, together = (
            column("share_over_removal", step, "adamw"),
            column("together_share", step),
        )
        figures[f"share_over_removal_{step}"] = statistics.median(shares)
        figures[f"together_share_{step}"] = statistics.median(together)
    return figures


@dataclass(frozen=True)
class Retrained:
    """A training's records, and what it changed that sets of pairs were left out of it, and of the
    training with its pairs in another order."""

    pairs: Pairs
    records: list[StepRecord]
    functionals: list[Functional]
    sets: list[list[str]]
    effects: Sums
    reordered: Sums

    @classmethod
    def of(cls, pairs: Pairs, config: LoopConfig, steps: int, size: int, seed: int) -> Retrained:
        """`GROUPS` sets of `size` pairs and `SINGLE` of one; the last pairs are not trained on."""
        rows = pairs.examples[:-WATCHED]
        random = np.random.default_rng(seed)
        answers = [row.chosen for row in pairs.examples[-WATCHED:] + rows[:WATCHED]]
        policy, batch = pairs.policy, pairs.policy.batch(answers)

        def end(record: StepRecord) -> Float[np.ndarray, " functionals"]:
            logps = policy.logps(policy.cast(record.after), batch)
            return batch.sequence_sum(logps).double().numpy()

        ids = [row.id for row in rows]
        sets = [random.choice(ids, size, replace=False).tolist() for _ in range(GROUPS)]
        sets += [[name] for name in ids[:SINGLE]]
        functionals = [Functional.mean(str(n), [own]) for n, own in enumerate(answers)]

        def effects(batches: Sequence[Sequence[Any]], records: Sequence[StepRecord]) -> Sums:
            retrained = [end([*pairs.train(config, batches, some)][-1]) for some in sets]
            return end(records[-1]) - np.stack(retrained)

        batches, others = drawn(rows, steps, 4, seed), drawn(rows, steps, 4, seed + ANOTHER)
        records = list(pairs.train(config, batches))
        reordered = effects(others, list(pairs.train(config, others)))
        return cls(pairs, records, functionals, sets, effects(batches, records), reordered)

    @property
    def ids(self) -> list[str]:
        return [row.id for row in self.pairs.rows[:-WATCHED]]

    def summed(self, pairs: Mapping[str, Float[np.ndarray, " functionals"]]) -> Sums:
        return np.stack([sum(pairs[name] for name in some) for some in self.sets])

    def account(
        self, groups: Mapping[str, Collection[str]], *, plain: bool = False
    ) -> tuple[dict[str, Float[np.ndarray, " functionals"]], float]:
        """The groups' lines, summed over steps, and how far the account closes.

        **Arguments:** `plain`: steps are gradient descent's, at the training's weights.
        """
        ledger = Ledger(self.pairs.policy, self.functionals, groups=groups)
        tables = LedgerTables([q.name for q in self.functionals])
        sums = {name: np.zeros(len(self.functionals)) for name in groups}
        for record in reversed(self.records):
            account = ledger.enter(record.as_gradient_step() if plain else record)
            tables.add(account)
            for name, lines in account.groups.items():
                sums[name] += lines.numpy()
        return sums, tables.summary().closure

    def of_pairs(self, *, plain: bool = False) -> Sums:
        return self.summed(self.account({name: [name] for name in self.ids}, plain=plain)[0])

    def group_lines(self) -> Sums:
        sets = {str(n): some for n, some in enumerate(self.sets)}
        return np.stack([*self.account(sets)[0].values()])

    def shares(self) -> Sums:
        with frozen_shares():
            return self.of_pairs()

    def words(self) -> Sums:
        rows = self.pairs.rows
        answers = [row.chosen for row in rows[-WATCHED:] + rows[:WATCHED]]

        def alike(text: str | None) -> Float[np.ndarray, " functionals"]:
            words = set((text or "").split())
            others = [set(answer.split()) for answer in answers]
            return np.array([len(words & other) / len(words | other) for other in others])

        return self.summed(
            {row.id: alike(row.chosen) - alike(row.rejected) for row in rows[:-WATCHED]}
        )

    def metagradient(self) -> Sums:
        metagradient = Metagradient(self.pairs.policy, self.functionals)
        sums = {name: np.zeros(len(self.functionals)) for name in self.ids}
        for record in reversed(self.records):
            step = metagradient.enter(record)
            for name, nats in zip(step.examples, step.nats.numpy(), strict=True):
                sums[name] += nats
        return self.summed(sums)

    def bergson(self, after: Path) -> dict[str, tuple[float, Sums]]:
        """CPU seconds and sums of Bergson's methods."""
        model = load_language_model(self.pairs.model)
        model.load_state_dict(self.records[-1].after, strict=False)
        model.save_pretrained(after)
        self.pairs.encoder.tokenizer.save_pretrained(after)
        scores, took = pair_scores(
            Path(os.environ["DYNOLAB_BERGSON"]),
            {"before": self.pairs.model, "after": after},
            OBJECTIVES["dpo"].beta,
            self.pairs.examples[:-WATCHED],
            [q.terms[0].sequence for q in self.functionals],
        )
        return {
            f"bergson_{method}": (
                took[f"bergson {method}"],
                self.summed(dict(zip(self.ids, scores[method], strict=True))),
            )
            for method in ("ekfac", "trackstar", "tracin")
        }

    def figures(self, folder: Path) -> dict[str, dict[str, float]]:
        """Of every method."""
        noise = np.random.default_rng(0).normal(size=(len(self.ids), len(self.functionals)))
        methods: dict[str, Callable[[], Sums]] = {
            "lines": self.of_pairs,
            "group_lines": self.group_lines,
            "shares": self.shares,
            "tracin": partial(self.of_pairs, plain=True),
            "words": self.words,
            "another_order": lambda: self.reordered,
            "random": lambda: self.summed(dict(zip(self.ids, noise, strict=True))),
        }
        if self.records[0].facts.optimizer.momentum:
            methods["metagradient"] = self.metagradient
        made = {name: cpu_timed(method) for name, method in methods.items()}
        if "DYNOLAB_BERGSON" in os.environ:
            made |= self.bergson(folder / "after")
        figures = {
            name: {"seconds": took, **self.agreement(sums)} for name, (took, sums) in made.items()
        }
        figures["lines"]["closure_max"] = self.account({})[1]
        return figures

    def agreement(self, sums: Sums) -> dict[str, float]:
        """How well sums foretell the effects."""
        predicted, measured = sums[:GROUPS].T, self.effects[:GROUPS].T
        ranks = rank_correlation(predicted, measured)
        whole, low, high = lds(predicted, measured)
        slopes = [slope(*both) for both in zip(predicted, measured, strict=True)]
        singles = zip(sums[GROUPS:].T, self.effects[GROUPS:].T, strict=True)
        return {
            "lds_heldout": float(np.mean(ranks[:WATCHED])),
            "lds_train": float(np.mean(ranks[WATCHED:])),
            "one_out_correlation": float(np.mean([np.corrcoef(*both)[0, 1] for both in singles])),
            "scale": statistics.median(slopes),
            "lds": whole,
            "lds_low": low,
            "lds_high": high,
        }


def cpu_timed(work: Callable[[], Sums]) -> tuple[float, Sums]:
    made: list[Sums] = []
    return cpu_seconds(lambda: made.append(work())), made[0]


def named(figure: str, training: str, method: str) -> str:
    return f"{figure}_{training}" + ("" if method == "lines" else f"_{method}")


def trainings(folder: Path) -> dict[str, float]:
    """Figures of short trainings, each optimizer's over seeds."""
    pairs, figures = Pairs.read("tinystories-656k", 32 + WATCHED), dict[str, float]()
    for optimizer, rate in TRAININGS.items():
        by_seed = []
        for seed in SEEDS:
            retrained = Retrained.of(pairs, training(optimizer, rate), 24, 6, seed)
            by_seed.append(retrained.figures(folder))
            print(optimizer, seed, by_seed[-1], file=sys.stderr, flush=True)
        for method, of_method in by_seed[0].items():
            for name in of_method.keys() - {"lds_low", "lds_high"}:
                values = np.array([found[method][name] for found in by_seed])
                interval, key = mean_interval(values), named(name, optimizer, method)
                ends = {f"{key}_low": interval.low, f"{key}_high": interval.high}
                figures |= {key: interval.mean, **ends}
    return figures


def long_trainings(folder: Path) -> dict[str, float]:
    """Figures of long trainings, one of each optimizer."""
    pairs, figures = Pairs.read("tinystories-656k", 120 + WATCHED), dict[str, float]()
    for optimizer, rate in LONG.items():
        retrained = Retrained.of(pairs, training(optimizer, rate), 100, 24, 0)
        for method, of_method in retrained.figures(folder).items():
            print(optimizer, method, of_method, file=sys.stderr, flush=True)
            figures |= {
                named(f"{name}_long", optimizer, method): value for name, value in of_method.items()
            }
    return figures


class Timed(ForceCallback):
    """The callback, and the CPU seconds that it takes of steps."""

    took = 0.0

    def _before_step(self) -> None:
        self.took += cpu_seconds(super()._before_step)

    def _after_step(self, step: int) -> None:
        self.took += cpu_seconds(partial(super()._after_step, step))


@dataclass(frozen=True)
class Costs:
    """CPU seconds of accounts of three steps."""

    pairs: Pairs
    folder: Path

    @cached_property
    def records(self) -> list[StepRecord]:
        batches = drawn(self.pairs.examples, 3, 4, 0)
        return list(self.pairs.train(training("adamw", 1e-5), batches))

    def ledger(self) -> float:
        answers = [example.chosen for example in self.pairs.examples[: 2 * WATCHED]]
        single = [Functional.mean(str(n), [own]) for n, own in enumerate(answers)]
        ledger = Ledger(self.pairs.policy, single)
        return cpu_seconds(lambda: [*map(ledger.enter, reversed(self.records))])

    def step_forces(self) -> float:
        pairs = self.pairs
        probes, answers = probes_of(pairs.rows[:8]), [row.chosen for row in pairs.examples[:4]]

        def forces(record: StepRecord) -> None:
            made = step_forces(record, pairs.policy, probes, pairs.encoder, stage="dpo")
            example_pushes(record, gradients_of(record, pairs.policy), made.gradient, answers)

        return cpu_seconds(lambda: [*map(forces, self.records)])

    def callback(self) -> float:
        settings = {"per_device_train_batch_size": 4, "max_steps": 3, "learning_rate": 1e-5}
        quiet = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no"}
        texts = [
            row.model_dump(include={"prompt", "chosen", "rejected"}) for row in self.pairs.rows
        ]
        trainer = DPOTrainer(
            load_language_model(self.pairs.model),
            args=TRLConfig(output_dir=str(self.folder), **settings, **quiet),
            train_dataset=Dataset.from_list(texts),
            processing_class=self.pairs.encoder.tokenizer,
        )
        callback = Timed(trainer, probes_of(self.pairs.rows[:8]), every=1)
        trainer.add_callback(callback)
        trainer.train()
        assert not callback.off, callback.off
        return callback.took


def cost(folder: Path) -> dict[str, float]:
    """CPU seconds over those with shares for lines."""
    figures: dict[str, float] = {}
    for model in MODELS:
        costs = Costs(Pairs.read(model, 24), folder)
        for work in (costs.ledger, costs.step_forces, costs.callback):
            today = frozen_shares(removals=work != costs.callback)(work)
            took = in_turns(work, today, repeats=REPEATS + 1)  # the first round is none
            name = f"cost_over_today_{work.__name__}_{model}"
            figures |= ratio(name, *(rounds[1:] for rounds in took))
    return figures


COSTS = [
    f"cost_over_today_{work}_{model}"
    for work in ("ledger", "step_forces", "callback")
    for model in MODELS
]

if __name__ == "__main__":
    main(
        {
            "steps": single_steps,
            "trainings": trainings,
            "long": long_trainings,
            "cost": cost,
            "sharded": sharded.split,
        },
        at_least={
            "line_over_removal_low": 0.97,
            "group_line_over_removal_low": 0.97,
            "line_removal_correlation": 0.999,
            "group_line_removal_correlation": 0.999,
            "lds_heldout_sgd": 0.98,
            "lds_heldout_rmsprop": 0.94,
            "lds_heldout_adamw": 0.94,
            **{f"one_out_correlation_{name}": 0.98 for name in TRAININGS},
        },
        at_most={
            "line_over_removal_high": 1.03,
            "group_line_over_removal_high": 1.03,
            "sharded_equals_whole": 1e-6,
            **dict.fromkeys(COSTS, 1.3),
            **dict.fromkeys(["closure_max", *(f"closure_max_{name}" for name in TRAININGS)], 1e-6),
        },
    )
