"""The parts of the training loop, one by one: what they ask of others, write and give back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from dynolab.data.encode import Encoded, EncodedExample
from dynolab.data.groups import Completion, Group
from dynolab.data.rows import write_rows
from dynolab.errors import DIVERGED, ConfigError, Diverged
from dynolab.likelihood.checked import CHECKS, note_check
from dynolab.likelihood.token_logps import ResponseLogits, token_logps
from dynolab.results.study import MetricsLine, Score
from dynolab.training import loop
from dynolab.training.alarm import GAP, RANG, RISE
from dynolab.training.engine import PlainEngine
from dynolab.training.job import TrainJob
from dynolab.training.loop import Trainer
from dynolab.training.step_batch import ScoredRow, count_step, recorded
from dynolab.training.step_passes import _sum_over_ranks
from models.language import load_language_model, load_tokenizer
from tests.training.interrupted import Died
from tests.training.ranks_played import play
from tests.training.small import logged, make_job, settings

PROMPT = (1, 5, 9, 12)


def trainer_of(job: TrainJob, **changes: Any) -> Trainer:
    """The job's trainer, some of its settings changed."""
    if changes:
        job = job.model_copy(update={"config": settings(**changes)})
    return Trainer(job, load_language_model(job.model), load_tokenizer(job.model))


@pytest.fixture
def job(inputs: Path, tmp_path: Path) -> TrainJob:
    """With a folder for results and one for logs."""
    job = make_job(inputs, tmp_path, settings())
    job.output.mkdir()
    (tmp_path / "logs").mkdir()
    return job.model_copy(update={"logs": tmp_path / "logs"})


@pytest.fixture
def trainer(job: TrainJob) -> Trainer:
    return trainer_of(job)


@pytest.fixture
def weights(trainer: Trainer) -> dict[str, Tensor]:
    """Others than the policy's own, which an engine can hold in half precision."""
    return {name: p.detach() + 1 for name, p in trainer.policy.named_parameters()}


def row(number: int, chosen: Sequence[int] = (7,), rejected: Sequence[int] = (8, 9)) -> ScoredRow:
    """A row without a reference."""
    both = [Encoded((*PROMPT, *answer, 2), len(PROMPT)) for answer in (chosen, rejected)]
    return ScoredRow(EncodedExample(f"r{number}", *both))


class Notes(PlainEngine):
    """Notes what it is asked."""

    def __init__(self, logits: ResponseLogits, config: Any) -> None:
        super().__init__(logits, config)
        self.losses: list[float] = []
        self.batches: list[list[str]] = []
        logits.register_forward_pre_hook(
            lambda module, inputs: self.batches.append(list(inputs[0].ids))
        )

    def backward(self, loss: Tensor) -> None:
        self.losses.append(float(loss.detach()))
        super().backward(loss)


def engine_of(trainer: Trainer) -> Notes:
    return Notes(ResponseLogits(trainer.policy), trainer.config)


def test_an_alarm_without_probes_of_the_gap_is_refused_before_training(
    job: TrainJob, tmp_path: Path
) -> None:
    write_rows(tmp_path / "none.jsonl", [])
    message = r"^alarm = .*no probe is the chosen answer of a training pair"
    for probes in (None, tmp_path / "none.jsonl"):
        with pytest.raises(ConfigError, match=message):
            trainer_of(job.model_copy(update={"probes": probes}), alarm={"rise": 1.0})
    assert len(trainer_of(job, alarm={"rise": 1.0}).probes) == 10


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_measured_of_the_model_is_told_by_the_first_rank(
    rank: int, job: TrainJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(model: Any) -> ResponseLogits:
        note_check("rows that share a prompt", {"largest": 0.25})
        return ResponseLogits(model)

    monkeypatch.setattr(loop, "ResponseLogits", measured)
    monkeypatch.setattr(Trainer, "_build_engine", Mock(side_effect=Died))
    play(monkeypatch, rank, 2)
    job.output.rmdir()
    with pytest.raises(Died):
        trainer_of(job).run()
    checks = tmp_path / "logs" / CHECKS
    assert (job.output.exists(), checks.exists()) == (rank == 0, rank == 0)
    if rank == 0:
        assert json.loads(checks.read_text())["rows that share a prompt"] == {"largest": 0.25}


def test_ranks_that_disagree_on_packing_all_raise(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = ResponseLogits(trainer.policy)
    sent: list[Any] = []
    play(monkeypatch, 0, 2, lambda mine: sent.append(mine) or [mine, sent[0]])
    trainer._check_ranks_agree(logits)
    assert sent == [32]
    monkeypatch.setattr(loop, "packing_width", lambda logits: None)
    message = (
        "^model = 'GPTNeoXForCausalLM': ranks differ on whether its responses can share prompts, "
        "so their machines compute different numbers; train on machines of one kind$"
    )
    with pytest.raises(ConfigError, match=message):
        trainer._check_ranks_agree(logits)


@pytest.mark.parametrize(
    ("rank", "expected"),
    [(0, [[], ["r0"], ["r2"], ["r4"]]), (1, [[], ["r1"], [], ["r3"]])],
)
def test_every_rank_has_as_many_forwards_however_many_examples_there_are(
    rank: int, expected: list[list[str]], trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, rank, 2)
    assert trainer.config.accumulation == 4
    parts = trainer.passes.micro_batches([row(number) for number in range(5)])
    assert [[example.id for example in part] for part in parts] == expected
    assert [list(part) for part in trainer.passes.micro_batches([])] == [[], [], [], []]


@pytest.mark.parametrize("margin", [1.0, 100.0])
def test_a_forward_without_examples_takes_one_of_the_step_s_and_adds_no_gradient(
    margin: float, job: TrainJob
) -> None:
    trainer = trainer_of(job, objective={"name": "slic", "margin": margin, "sft_weight": 0.0})
    engine = engine_of(trainer)
    # The short answer is far likelier: a margin of one nat is reached, and the loss is zero.
    rows = [row(number, rejected=range(8, 16)) for number in range(2)]
    sums, *_ = trainer.passes.accumulate(engine, 0, rows, count_step(rows, (0, 1)))
    assert engine.batches == [["r0"], ["r0"], ["r0"], ["r1"]]
    empty, first, also_empty, second = engine.losses
    assert empty == also_empty == 0
    assert sums["train/loss"] == pytest.approx(first + second)
    assert (first == 0) == (margin == 1.0)
    gradients = {name: p.grad.clone() for name, p in trainer.policy.named_parameters()}

    trainer.policy.zero_grad()
    tokens = trainer.passes.tokens(engine, rows, count_step(rows, trainer.objective.sides))
    logps = token_logps(engine.logits(tokens), tokens)
    loss = trainer.objective.loss(logps, tokens)
    loss.backward()
    for name, parameter in trainer.policy.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-6)


def test_sums_are_those_of_all_ranks_and_some_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = {"train/loss": torch.tensor(0.5), "train/margin": torch.tensor(2.0)}
    assert _sum_over_ranks(mine) == {"train/loss": 0.5, "train/margin": 2.0}
    shares = [{"train/loss": 1.0}, {}, {"train/loss": 0.25, "train/kl": 4.0}]
    play(monkeypatch, 1, 3, lambda mine: [shares[0], mine, shares[2]])
    assert _sum_over_ranks(mine) == {"train/loss": 1.75, "train/margin": 2.0, "train/kl": 4.0}
    assert _sum_over_ranks({}) == {"train/loss": 1.25, "train/kl": 4.0}


def test_responses_of_one_prompt_share_a_row(trainer: Trainer) -> None:
    engine, rows = engine_of(trainer), [row(number) for number in range(3)]
    tokens = trainer.passes.tokens(engine, rows, count_step(rows, trainer.objective.sides))
    assert (len(tokens.side), len(tokens.input_ids)) == (6, 1)
    assert tokens.temperature == 1.0


class Scorer:
    """Stands for a `ProbeScorer` that knows its scores."""

    made: list[dict[str, Any]]
    scores: list[Score]

    def __init__(self, *given: Any, **named: Any) -> None:
        self.made.append({"given": given, **named})

    def score(self) -> list[Score]:
        return self.scores


def score(pair: str, logp: float, argmax: float) -> Score:
    return Score(
        pair_id=pair,
        split="train",
        kind="chosen",
        tokens=2,
        logp=logp,
        argmax_logp=argmax,
        outside_logmass=-1.0,
    )


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> type[Scorer]:
    monkeypatch.setattr(loop, "ProbeScorer", Scorer)
    monkeypatch.setattr(Scorer, "made", [], raising=False)
    monkeypatch.setattr(Scorer, "scores", [score("a", -4.0, -1.0)], raising=False)
    return Scorer


@pytest.mark.parametrize("stage", [2, 3])
def test_ranks_share_the_probes_and_under_zero_3_run_as_many_forwards(
    stage: int,
    job: TrainJob,
    scorer: type[Scorer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = {"kind": "deepspeed", "ranks": 2, "zero_stage": stage}
    trainer = trainer_of(job, engine=engine, probe_batch_tokens=99)
    other, holder = score("b", -8.0, -3.0), SimpleNamespace(logits=object())
    play(monkeypatch, 1, 2, lambda mine: [[other], mine])
    for step in (0, 2):
        trainer._probe(holder, step)
    given = (holder.logits, trainer.probes, trainer.encoder)
    made = {"given": given, "batch_tokens": 99, "share": (1, 2), "in_step": stage == 3}
    assert scorer.made == [made]
    assert not list(job.output.iterdir())

    play(monkeypatch, 0, 2, lambda mine: [mine, [other]])
    trainer._probe(holder, 4)
    assert (job.output / "probes.jsonl").read_text() == "".join(
        json.dumps({**json.loads(row.line()), "step": 4}, separators=(",", ":")) + "\n"
        for row in [*scorer.scores, other]
    )
    (line,) = logged(job)
    means = (line.metrics["probe/chosen/logp"], line.metrics[GAP])
    assert (line.step, means) == (4, (-6.0, 4.0))


def alarmed(job: TrainJob) -> Trainer:
    trainer = trainer_of(job, alarm={"rise": 1.5}, probe_every=1)
    trainer.alarm = trainer._build_alarm()
    return trainer


BEFORE = [
    MetricsLine(step=0, examples=0, time=0.0, metrics={GAP: 1.0}),
    MetricsLine(step=1, examples=8, time=0.0, metrics={"train/loss": 1.0}),
]


@pytest.mark.parametrize(
    ("rank", "resumed", "expected"),
    [
        (0, True, {RISE: 2.0, RANG: 1.0}),
        (1, True, {RISE: 2.0, RANG: 1.0}),
        (0, False, {RISE: 0.0}),
    ],
    ids=["first rank", "another rank", "anew beside an old log"],
)
def test_a_resumed_alarm_alone_knows_on_every_rank_what_was_logged_before(
    rank: int,
    resumed: bool,
    expected: dict[str, float],
    job: TrainJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if rank == 0:
        log = "".join(line.model_dump_json() + "\n" for line in BEFORE)
        (job.output / "metrics.jsonl").write_text(log)
        play(monkeypatch, 0, 2, lambda mine: [mine, []])
    else:  # Another host may not see the file yet.
        play(monkeypatch, 1, 2, lambda mine: [BEFORE, mine])
    if resumed:
        job = job.model_copy(update={"resume_from": tmp_path / "state"})
    trainer = alarmed(job)
    assert trainer.alarm is not None
    assert trainer.alarm.update(2, {GAP: 3.0}) == expected


@pytest.mark.parametrize("says", [False, True])
def test_the_first_rank_says_whether_training_ends(
    says: bool, job: TrainJob, scorer: type[Scorer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = alarmed(job)
    play(monkeypatch, 1, 2, lambda mine: [says if isinstance(mine, bool) else [], mine])
    assert trainer._ended(SimpleNamespace(logits=None), 0) == says


@pytest.mark.parametrize("logs", [True, False])
def test_what_diverged_is_kept_as_records_hold_it(
    logs: bool, job: TrainJob, tmp_path: Path
) -> None:
    trainer = trainer_of(job if logs else job.model_copy(update={"logs": None}))
    answer = Encoded((1, 5, 6, 2), 2)
    groups = [Group(name, (Completion(answer, torch.tensor([0.5, 1.0])),)) for name in "gh"]
    trainer.source = SimpleNamespace(temperature=0.7)
    trainer._check_finite("loss", 1.0, groups)
    with pytest.raises(Diverged, match=r"^loss = inf: ") as stopped:
        trainer._check_finite("loss", math.inf, groups)
    assert stopped.value.ids == ["g", "h"]
    kept = (tmp_path / ("logs" if logs else "output") / DIVERGED).read_text()
    expected = [recorded(group, trainer.objective.sides, 0.7) for group in groups]
    assert kept == "".join(example.model_dump_json() + "\n" for example in expected)


def test_another_rank_diverges_with_the_first_and_writes_nothing(
    trainer: Trainer, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch, 1, 2)
    trainer._log(1, {"train/loss": 1.0})
    with pytest.raises(Diverged):
        trainer._check_finite("loss", math.nan, [row(0)])
    engine = SimpleNamespace(master_weights=lambda: weights, second_moments=dict)
    trainer._record(engine, 0, 0.1, 1.0, [row(0)], weights, {})
    trainer._finish(engine, 1)
    assert not list(trainer.job.output.iterdir())
