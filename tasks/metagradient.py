"""Stage `metagradient`: derivatives of final log-probabilities by each example's loss weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dynolab.data.rows import ProbeRow, read_rows, read_value
from dynolab.results.counterfactual import ExampleDerivative
from dynolab.results.ledger import FunctionalRow
from dynolab.results.study import TrainingSummary
from dynolab.training.config import TrainConfig
from tasks.runtime.stage import Stage
from tasks.runtime.work import StageConfig, Work
from tasks.shared.policies import adapter_folder, load_encoder, load_policy
from tasks.shared.replay import Replay, learned_steps

if TYPE_CHECKING:
    from dynolab.forces.ledger.functional import Functional


class MetagradientConfig(StageConfig):
    """A training that is differentiated."""

    training: TrainConfig
    batch_tokens: int | None = Field(ge=1, description="Padded tokens of one forward.")
    disk_bytes: int | None = Field(ge=1, description="As of a ledger.")


def differentiate(work: Work[MetagradientConfig]) -> dict[str, float]:
    """Reads inputs `data`, `model`, which the training began with, `trained`, and `ledger`, whose
    functionals are differentiated.

    Results: `derivatives.jsonl`.
    """
    from dynolab.forces.ledger.metagradient import Metagradient

    config, trained = work.config, work.input_folder("trained")
    steps = read_value(trained / "summary.json", TrainingSummary).steps
    model, metrics = work.input_folder("model", "model"), trained / "metrics.jsonl"
    functionals = watched(work)
    policy = load_policy(work.input_folder("trained", "model"), adapter_folder(work, "trained"))
    replay = Replay(
        work=work,
        config=config.training,
        model=model,
        examples=work.input_folder("data") / "train.jsonl",
        metrics=metrics,
    )
    backwards = Metagradient(policy, functionals, batch_tokens=config.batch_tokens)
    totals: dict[str, list[float]] = {}
    with work.shown(steps) as progress:
        for record in replay.backwards(
            learned_steps(metrics),
            replay.segment(steps, config.disk_bytes),
            lambda text: progress.update(progress.step, text),
        ):
            found = backwards.enter(record)
            for example, nats in zip(found.examples, found.nats.tolist(), strict=True):
                known = totals.get(example, [0.0] * len(functionals))
                totals[example] = [a + b for a, b in zip(known, nats, strict=True)]
            progress.update(steps - found.step, f"step {found.step}")
    work.write_tables(
        derivatives=[
            ExampleDerivative(example=example, functional=functional.name, nats=nats)
            for example, own in totals.items()
            for functional, nats in zip(functionals, own, strict=True)
        ]
    )
    return work.log_metrics({"metagradient/examples": float(len(totals))})


def watched(work: Work[MetagradientConfig]) -> list[Functional]:
    """The ledger's functionals."""
    from dynolab.forces.ledger.functional import functional_of

    encoder = load_encoder(work.input_folder("trained", "model"))
    rows = list(read_rows(work.input_folder("data") / "probes.jsonl", ProbeRow))
    known = read_rows(work.input_folder("ledger") / "functionals.jsonl", FunctionalRow)
    return [functional_of(row, rows, encoder) for row in known]


METAGRADIENT = Stage(
    "metagradient", 2, differentiate, operational=frozenset({"disk_bytes", "batch_tokens"})
)
"""`disk_bytes` decides how often training is run again, not what comes of it."""
