"""How far first order carries: the second order's exactness, cost and predictions, and the ladder.

    DYNOLAB_TEST_DATA=FOLDER python -m tests.benchmarks.order

FOLDER holds what `deploy/studies/hh_tinystories.yaml` names; without it that training is left out.
Prints one JSON object on its last line.

- `second_order_vs_difference`: largest relative difference of the second order from central
  differences of the first, in float64, on two small models.
- `second_order_over_first_cost`: a nested forward derivative over a single one, on the built-in
  study's model after SFT and 16 of its answers.
- `breakdown_rate_predicted_over_swept_<training>`: the learning rate at which first order at a
  training's start leaves 5% of all its steps' change unexplained, predicted from the recorded steps
  of one run, over that found by training at five rates around it, or over the last of these where
  none leaves so much (the first where all do); `…_low` and `…_high` are the extremes.
- `ladder_last_rung_auc`: how well first order of the whole batch foretells which tokens rise, the
  lowest of all sides and recorded steps inside the radius of validity; `ladder_first_rung_auc`: of
  the rule of one softmax, the median.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from dynolab.data.rows import ProbeRow
from dynolab.forces import PolicyFunction
from dynolab.forces.function.views import View
from dynolab.forces.step.radius import crossing, rate_radius
from dynolab.forces.step.second_order import second_order
from dynolab.results.forces import UNEXPLAINED, Validity
from dynolab.squeezing.ladder import ladder
from dynolab.training.config import OptimizerConfig, TrainConfig
from dynolab.training.optimizer import learning_rate
from tasks.runtime.stage import Stage, run_stage
from tasks.shared.policies import load_encoder, load_policy
from tasks.step_forces import FORCES, ForcesConfig
from tasks.training import PREFERENCE, SFT
from tests.benchmarks.figures import gather, interleaved, ratio, report
from tests.benchmarks.ledger import Study
from tests.forces.small_models import direction, encoded, llama, neox, relative

STEPS, PAIRS = 40, 8
RECORDED = (0, 1, 3, 9, 19, 39)
RATES = (1 / 4, 1 / 2, 1, 2, 4)
DIFFERENCE = 1e-4
ANSWERS, REPEATS = 16, 7


def differences() -> dict[str, float]:
    """The second order of small models against differences of the first."""
    errors = []
    for model in (neox(), llama(dtype=torch.float64)):
        policy, change = PolicyFunction(model, torch.float64), direction(model, 0.02)
        batch, _ = policy.batch([encoded(0), encoded(1, response=3)])
        view = View.realised(batch)
        made = second_order(policy, policy.weights, change, batch, view)
        ahead, behind = (
            policy.change_along(
                {name: w + s * change[name] for name, w in policy.weights.items()},
                [change],
                batch,
                view=view,
            )[0]
            for s in (DIFFERENCE, -DIFFERENCE)
        )
        expected = (ahead - behind) / (2 * DIFFERENCE)
        errors.append(relative(2 * (made.jacobian + made.softmax), expected))
    return {"second_order_vs_difference": max(errors)}


class Trainings(Study):
    """A study's trainings at other rates, and what first order at their start explains."""

    def cost(self) -> dict[str, float]:
        """Both orders over the first alone."""
        folder = self.folder(self.results["sft"]) / "model"
        policy, encoder = load_policy(folder), load_encoder(folder)
        rows = self.rows(self.results["data"], "probes.jsonl", ProbeRow)[:ANSWERS]
        batch, _ = policy.batch(
            [encoder.response(row.pair_id, row.prompt, row.response) for row in rows]
        )
        view, change = View.realised(batch), direction(policy.model, 1e-4)
        times = interleaved(
            lambda: second_order(policy, policy.weights, change, batch, view),
            lambda: policy.change_along(policy.weights, [change], batch, view=view),
            repeats=REPEATS,
        )
        return ratio("second_order_over_first_cost", *times)

    def breakdown(self, name: str, config: TrainConfig) -> dict[str, float]:
        """The rate at which first order breaks down, predicted over swept."""
        config = config.model_copy(
            update={
                "steps": STEPS,
                "record_steps": RECORDED,
                "checkpoint_every": 0,
                "probe_every": 0,
                "ledger": None,
            }
        )
        rates = {step: learning_rate(config, step) for step in range(STEPS)}
        predicted = rate_radius(from_start(self.validities(config)), rates)
        multiples = [predicted * factor for factor in RATES]
        rate = config.optimizer.learning_rate
        shares = []
        for multiple in multiples:
            optimizer = config.optimizer.model_copy(update={"learning_rate": rate * multiple})
            tried = self.validities(config.model_copy(update={"optimizer": optimizer}))
            shares.append(from_start(tried)[-1].unexplained)
        swept = crossing(multiples, shares)
        if math.isnan(swept):  # beyond the sweep: the ratio is a bound
            swept = multiples[-1] if shares[-1] <= UNEXPLAINED else multiples[0]
        print(f"{name}: predicted {predicted}, swept {swept}: {shares}", flush=True)
        return {
            f"breakdown_rate_{name}": predicted * rate,
            f"breakdown_rate_predicted_over_swept_{name}": predicted / swept,
        }

    def validities(self, config: TrainConfig) -> list[Validity]:
        """Of a training's last step, and of all its steps."""
        reads = {"data": self.results["data"], "model": self.results[self.start(config)]}
        trained = run_stage(self.stage(config), config, reads, self.platform)
        forces = run_stage(
            FORCES, ForcesConfig(pairs=PAIRS), {**reads, "trained": trained}, self.platform
        )
        return self.rows(forces, "validity.jsonl", Validity)

    def stage(self, config: TrainConfig) -> Stage:
        """SFT starts from the base model, everything else from SFT's."""
        return SFT if config.objective.name == "sft" else PREFERENCE

    def start(self, config: TrainConfig) -> str:
        """Name of the stage whose model a training starts from."""
        return "base" if config.objective.name == "sft" else "sft"

    def rungs(self) -> Iterator[tuple[float, float]]:
        """AUC of the first and the last rung of recorded steps inside the radius, by side."""
        config = self.parameters.preference
        reads = {"data": self.results["data"], "model": self.results["sft"]}
        trained = run_stage(PREFERENCE, config, reads, self.platform)
        inside = [row.step for row in self.validities(config) if row.unexplained <= row.bound]
        policy = load_policy(self.folder(trained) / "model")
        for step in sorted(set(inside)):
            rows = ladder(self.record(trained, step), policy, training="dpo")
            by_side = {(row.side, row.rung): row.auc for row in rows}
            for side in {side for side, _ in by_side}:
                yield by_side[side, "logits"], by_side[side, "batch"]


def from_start(changes: list[Validity]) -> list[Validity]:
    """Those of all steps from a training's first to a recorded one."""
    return [own for own in changes if own.since is not None or own.step == 0]


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        builtin = Trainings(Path(home) / "builtin", "builtin.yaml")
        preference = builtin.parameters.preference
        adamw = preference.model_copy(update={"optimizer": OptimizerConfig(learning_rate=1e-4)})
        parts = [
            differences,
            builtin.cost,
            lambda: builtin.breakdown("sft", builtin.parameters.sft),
            lambda: builtin.breakdown("dpo_sgd", preference),
            lambda: builtin.breakdown("dpo_adamw", adamw),
        ]
        studies = [builtin]
        if "DYNOLAB_TEST_DATA" in os.environ:
            stories = Trainings(Path(home) / "tinystories", "hh_tinystories.yaml")
            parts.append(lambda: stories.breakdown("tinystories", stories.parameters.preference))
            studies.append(stories)
        figures = gather(parts)
        rungs = [pair for study in studies for pair in study.rungs()]
    key = "breakdown_rate_predicted_over_swept"
    ratios = [value for name, value in figures.items() if name.startswith(key)]
    figures |= {
        f"{key}_low": min(ratios),
        f"{key}_high": max(ratios),
        "trainings": float(len(ratios)),
        "ladder_first_rung_auc": statistics.median(first for first, _ in rungs),
        "ladder_last_rung_auc": min(last for _, last in rungs),
    }
    report(
        figures,
        at_least={f"{key}_low": 0.5, "ladder_last_rung_auc": 0.97, "trainings": 4},
        at_most={
            f"{key}_high": 2.0,
            "second_order_vs_difference": 1e-5,
            "second_order_over_first_cost": 3.0,
        },
    )


if __name__ == "__main__":
    main()
