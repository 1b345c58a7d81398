"""Stages of `trace`: which training rows moved a behaviour, and trainings without these rows."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from pydantic import Field

from dynolab.audit.word_overlap import shared_words
from dynolab.data.encode import Encoder
from dynolab.data.rows import (
    Example,
    ProbeRow,
    PromptRow,
    read_rows,
    read_value,
    spaced,
    write_rows,
)
from dynolab.errors import ConfigError
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.probes.score import score_probes
from dynolab.results.ledger_reader import LedgerReader, read_ledger
from dynolab.results.trace import BehaviourRow, Choice, TracedModel, TracedRow, TraceSummary
from dynolab.rollouts.generator import SampleConfig
from dynolab.rollouts.rewards import RewardConfig, Rewards
from dynolab.statistics import column, rank_correlation
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.page_helpers import PageConfig, facts_of, page_shown
from tasks.shared.policies import load_encoder, load_model, responses

UNWANTED, WANTED = "unwanted", "wanted"
ENCODED_TOKENS = 1024
"""Padded tokens of one forward."""


class BehaviourConfig(StageConfig):
    """The file of a behaviour."""

    path: str
    sha256: str


def read_behaviour(work: Work[BehaviourConfig]) -> dict[str, float]:
    """Reads input `trained`, whose tokenizer and context bound the continuations.

    Results: `probes.jsonl`, two answers of each prompt. Rows are ranked by every other prompt, of
    split `train`; the others, `heldout`, judge the ranking.

    **Raises** `ConfigError` for a prompt whose continuations are alike, or do not fit the model's
    context.
    """
    with work.shown():
        rows = behaviour_rows(Path(work.config.path))
        encoder = load_encoder(work.input_folder("trained", "model"), "error")
        probes = []
        for number, row in enumerate(rows):
            for kind, text in ((UNWANTED, row.unwanted), (WANTED, row.wanted)):
                probe = ProbeRow(
                    pair_id=f"prompt-{number:04d}",
                    split="heldout" if number % 2 else "train",
                    kind=kind,
                    prompt=row.prompt,
                    response=spaced(text),
                    made_by="file",
                )
                encoder.probe(probe)
                probes.append(probe)
        write_rows(work.output / "probes.jsonl", probes)
    return {"behaviour/prompts": float(len(rows))}


def behaviour_rows(path: Path) -> list[BehaviourRow]:
    """The prompts of a file of JSON lines.

    **Raises** `ConfigError` for fewer than four, and for a prompt whose continuations are alike.
    """
    rows = list(read_rows(path, BehaviourRow))
    for number, row in enumerate(rows, 1):
        if row.unwanted.strip() == row.wanted.strip():
            remedy = "unwanted and wanted are the same text; give two that differ"
            raise ConfigError(f"behaviour line {number}", row.wanted, remedy)
    if len(rows) < LEAST:
        remedy = f"half of the prompts judge the ranking by the others; give {LEAST} at least"
        raise ConfigError("behaviour", f"{len(rows)} prompts", remedy)
    return rows


LEAST = 4


class TraceConfig(StageConfig):
    """How rows are ranked."""


def trace(work: Work[TraceConfig]) -> dict[str, float]:
    """Reads inputs `ledger`, of the contrast, `data` and `behaviour`.

    Results: `trace.jsonl`, the training rows, the one that moved the model furthest towards the
    behaviour first, and `trace.json`.
    """
    with work.shown():
        ledger = read_ledger(work.input_folder("ledger"), work.input_folder("data"))
        probes = list(read_rows(work.input_folder("behaviour") / "probes.jsonl", ProbeRow))
        rows = traced_rows(ledger, probes)
        work.write_tables(trace=rows)
        summary = summarised(ledger, rows)
        (work.output / "trace.json").write_text(summary.model_dump_json(indent=1))
    work.tracker.log_artifact(work.output / "trace.jsonl", "trace")
    return {
        "trace/agreement": summary.agreement,
        "trace/words": summary.words,
        "trace/change_heldout": summary.end["heldout"] - summary.start["heldout"],
    }


def traced_rows(ledger: LedgerReader, probes: Sequence[ProbeRow]) -> list[TracedRow]:
    """The training rows that were in batches, by what they did."""
    lines = {account.row.name: account.lines for account in ledger.accounts}
    weights = ledger.weights[np.searchsorted(ledger.steps, ledger.step)]
    nats, nats_heldout = (
        ledger.by_example(weights * lines[f"{split}/contrast"]) for split in ("train", "heldout")
    )
    words = words_of(probes)
    rows = []
    for name, of_train, of_heldout in zip(ledger.examples, nats, nats_heldout, strict=True):
        row = TracedRow(
            id=name,
            nats=float(of_train),
            nats_heldout=float(of_heldout),
            words=words(ledger.rows[name]),
            random=random.Random(name).random(),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: -row.nats)


def words_of(probes: Sequence[ProbeRow]) -> Callable[[Example], float]:
    """How much more of a row's words unwanted continuations share than wanted ones.

    A chosen answer counts up, a rejected one down. Of the prompts that rows are ranked by.
    """
    signs = {UNWANTED: 1, WANTED: -1}
    of_train = [row for row in probes if row.split == "train"]
    texts = [(signs[row.kind], set(row.response.lower().split())) for row in of_train]

    def likeness(answer: str | None) -> float:
        words = set((answer or "").lower().split())
        return sum(sign * shared_words(words, text) for sign, text in texts) / len(texts)

    return lambda row: likeness(row.chosen) - likeness(row.rejected)


def summarised(ledger: LedgerReader, rows: Sequence[TracedRow]) -> TraceSummary:
    """How the contrast moved, and how well rankings agree on the held-out prompts."""
    accounts = {
        account.row.split: account for account in ledger.accounts if account.row.kind == "contrast"
    }
    heldout = np.array([row.nats_heldout for row in rows])
    agreement, words = (
        float(np.nan_to_num(rank_correlation(column(rows, name), heldout)))
        for name in ("nats", "words")
    )
    return TraceSummary(
        start={split: account.start for split, account in accounts.items()},
        end={split: account.end for split, account in accounts.items()},
        agreement=agreement,
        words=words,
    )


class LeaveOutConfig(StageConfig):
    """Which rows are left out."""

    by: Choice
    rows: int = Field(ge=1)


def leave_out(work: Work[LeaveOutConfig]) -> dict[str, float]:
    """Reads inputs `data` and `trace`.

    Results: `train.jsonl` without the first rows of a ranking, and the unchanged `probes.jsonl`. A
    training stage reads this result in place of the data stage's.

    **Raises** `ConfigError` where no row would remain.
    """
    config, data = work.config, work.input_folder("data")
    with work.shown():
        traced = list(read_rows(work.input_folder("trace") / "trace.jsonl", TracedRow))
        if config.rows >= len(traced):
            remedy = f"the training drew {len(traced)} rows; leave fewer out"
            raise ConfigError("leave_out", config.rows, remedy)
        gone = {row.id for row in first_rows(traced, config.by, config.rows)}
        examples = read_rows(data / "train.jsonl", Example)
        write_rows(work.output / "train.jsonl", (row for row in examples if row.id not in gone))
        shutil.copyfile(data / "probes.jsonl", work.output / "probes.jsonl")
    return {"data/pairs_left_out": float(len(gone))}


def first_rows(rows: Sequence[TracedRow], by: Choice, count: int) -> list[TracedRow]:
    """The first rows of a ranking."""
    number = {"lines": "nats", "words": "words", "random": "random"}[by]
    return sorted(rows, key=lambda row: -float(getattr(row, number)))[:count]


class BehaviourTestConfig(StageConfig):
    """How a model's behaviour is looked at."""

    rule: tuple[RewardConfig, ...] = ()
    samples: int = 4
    sampling: SampleConfig = SampleConfig()


def look_at_behaviour(work: Work[BehaviourTestConfig]) -> dict[str, float]:
    """Reads inputs `behaviour` and `model`.

    Results: `behaviour.json`, the contrast at every prompt and, with a rule, the mean reward of
    sampled answers to it.
    """
    config = work.config
    with work.shown():
        model, tokenizer = load_model(work.input_folder("model", "model"))
        probes = list(read_rows(work.input_folder("behaviour") / "probes.jsonl", ProbeRow))
        encoder: Encoder = load_encoder(work.input_folder("model", "model"))
        scores = score_probes(ResponseLogits(model), probes, encoder, batch_tokens=ENCODED_TOKENS)
        logps = {(score.pair_id, score.kind): score.logp for score in scores}
        prompts = [row for row in probes if row.kind == UNWANTED]
        contrast = [logps[row.pair_id, UNWANTED] - logps[row.pair_id, WANTED] for row in prompts]
        rate: list[float] = []
        if config.rule:
            asked = list(chain.from_iterable([row] * config.samples for row in prompts))
            sampled = responses(model, tokenizer, asked, config.sampling)
            rule, texts = Rewards(config.rule), [answer.text for answer in sampled]
            for number, row in enumerate(prompts):
                of_row = texts[number * config.samples : (number + 1) * config.samples]
                prompt = PromptRow(id=row.pair_id, prompt=row.prompt)
                rate.append(float(np.mean(rule(row.prompt, of_row, prompt))))
        behaviour = TracedModel(contrast=tuple(contrast), rate=tuple(rate))
        (work.output / "behaviour.json").write_text(behaviour.model_dump_json())
    means = {"behaviour/contrast": float(np.mean(contrast))}
    return means | ({"behaviour/rate": float(np.mean(rate))} if rate else {})


class TracePageConfig(PageConfig):
    """Facts about the trace that the page shows."""

    leave_out: int


MODEL_OF = "model_"
"""Begins the names of the page's inputs that hold models' behaviour."""


def trace_page(work: Work[TracePageConfig]) -> dict[str, float]:
    """Reads inputs `trace`, `data`, `behaviour`, and the behaviour of models, `model_<name>`.

    Results: `trace.html` and `figures/`; the page goes to MLflow. Returns the inputs' metrics.
    """
    from dynolab.report.trace import TracePageInputs, write_trace_page

    config = work.config
    with page_shown(work):
        folder = work.input_folder("trace")
        inputs = TracePageInputs(
            name=config.name,
            rows=list(read_rows(folder / "trace.jsonl", TracedRow)),
            summary=read_value(folder / "trace.json", TraceSummary),
            examples={
                row.id: row for row in read_rows(work.input_folder("data") / "train.jsonl", Example)
            },
            models={
                name.removeprefix(MODEL_OF): read_value(
                    work.input_folder(name) / "behaviour.json", TracedModel
                )
                for name in work.inputs
                if name.startswith(MODEL_OF)
            },
            leave_out=config.leave_out,
            settings=config.settings,
            stages=facts_of(work.inputs),
        )
        return write_trace_page(inputs, work.output)


BEHAVIOUR = Stage("behaviour", 1, read_behaviour, ("path",))
TRACE = Stage("trace", 1, trace)
LEAVE_OUT = Stage("leave-out", 1, leave_out)
BEHAVIOUR_TEST = Stage("behaviour-test", 1, look_at_behaviour)
TRACE_PAGE = Stage("trace-page", 1, trace_page)
