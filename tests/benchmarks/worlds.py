"""Whether the built-in world's facts are known and can be asked, and what DPO makes of answers.

    python -m tests.benchmarks.worlds [--only known|claims|doses|cost|study]

Prints one JSON object on its last line:

- `heldout_right_at_preference_start`: share of held-out questions that the finetuned model answers
  rightly, greedily, mean over seeds that no setting was tuned on; `…_least` and `…_most` seed by
  seed. `heldout_right_base`: before finetuning. `tuned_right_at_preference_start`: of the questions
  finetuned on.
- `dpo_…`: what DPO changes, mean over seeds, with its 95% t-interval `…_low` to `…_high`: nats on
  training prompts for `chosen`, `rejected`, `argmax` (y*), `gap`; shares of greedy answers for
  `tuned_right`, `heldout_right`, `heldout_wrong`.
- `claims_total`: the papers' findings that `dynolab reproduce` judges in the built-in world, in the
  home that DYNOLAB_HOME names or in an empty one; `claims_decided_fraction`: of how many the
  interval decides, either way; `…_stories`: on a pretrained story model, where DYNOLAB_TEST_DATA
  names it.
- `designed_right_minus_dpo`, `designed_right_minus_best_dose`: share of right answers to training
  questions (sampled, `mitigation_doses.yaml`) where the margin has grown by ten nats, of the dose
  that forces choose over DPO's and over the best constant one's, paired by seed, with 95%
  t-intervals; `remedies`: arms beside DPO that reach that margin in every seed.
- `designed_step_cost`: seconds of a step with a designed dose over those of a plain DPO step.
- `study_s`: seconds of the built-in study in an empty home, servers included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from dynolab.data.rows import Example, read_rows
from dynolab.data.sources.load import load_data
from dynolab.data.world.answer_kinds import RIGHT, WRONG, answer_kind
from dynolab.data.world.lexicon import answered
from dynolab.objectives.designed_dose import DesignedDoseConfig
from dynolab.objectives.dpo import DPOConfig
from dynolab.results.study import MetricsLine
from dynolab.rollouts.sample import SampleConfig, sample_responses
from dynolab.statistics import mean_interval
from models.language import load_language_model, load_tokenizer
from tests.benchmarks.figures import gather, ratio, report, seconds
from tests.benchmarks.study import study
from tests.benchmarks.worlds_groups import run
from tests.study.arms import OFF_POLICY, SFT, finetune, prepare, study_parameters, train_arm
from tests.study.findings import measure, probe_changes

SEEDS = (100, 101, 102, 103, 104)
STEPS, ROUNDS = 30, 5
SPEED = "train/examples_per_s"
START = "heldout_right_at_preference_start"
AT_LEAST = {
    "remedies": 8,
    f"{START}_least": 0.3,
    "dpo_argmax_low": 0.0,
    "dpo_gap_low": 0.0,
    "claims_decided_fraction": 0.9,
    "claims_decided_fraction_stories": 0.75,
}
AT_MOST = {
    "designed_step_cost": 1.6,
    f"{START}_most": 0.7,
    "dpo_chosen_high": 0.0,
    "dpo_rejected_high": 0.0,
    "dpo_tuned_right_high": 0.0,
    "study_s": 360.0,
}


def known(folder: Path) -> dict[str, float]:
    """Trains base, SFT and DPO of every seed with the built-in study's settings."""
    starts, changes = [], []
    for seed in SEEDS:
        place = folder / f"seed-{seed}"
        parameters = study_parameters(seed)
        prepare(parameters, place)
        results = train_arm(OFF_POLICY, parameters, place)
        world = load_data(parameters.data)
        asked = {"tuned": world.pairs, "heldout": world.heldout}
        base, start, end = (
            answers(place / name / "model", asked) for name in ("base", SFT, OFF_POLICY)
        )
        starts.append({"base": base["heldout_right"], **start})
        likelihoods = probe_changes(measure(OFF_POLICY, results, place / "world" / "probes.jsonl"))
        changes.append(
            {
                **{name.removeprefix("Δ "): nats for name, nats in likelihoods.items()},
                **{name: end[name] - start[name] for name in end},
            }
        )
        print({"seed": seed, "start": starts[-1], "changes": changes[-1]}, flush=True)
    heldout = [start["heldout_right"] for start in starts]
    figures = {
        START: float(np.mean(heldout)),
        f"{START}_least": min(heldout),
        f"{START}_most": max(heldout),
        "heldout_right_base": float(np.mean([start["base"] for start in starts])),
        "tuned_right_at_preference_start": float(
            np.mean([start["tuned_right"] for start in starts])
        ),
    }
    for name in changes[0]:
        change = mean_interval(np.array([of_seed[name] for of_seed in changes]))
        key = f"dpo_{name.replace('y*', 'argmax')}"
        figures |= {key: change.mean, f"{key}_low": change.low, f"{key}_high": change.high}
    return figures


def answers(model: Path, asked: Mapping[str, list[Example]]) -> dict[str, float]:
    """Shares of right and wrong statements among greedy answers."""
    policy, tokenizer = load_language_model(model), load_tokenizer(model)
    greedy = SampleConfig(temperature=0, max_new_tokens=24)
    shares = {}
    for name, rows in asked.items():
        sampled = sample_responses(policy, tokenizer, [row.prompt for row in rows], greedy)
        kinds = [
            answer_kind(row.prompt, answer.text, answered(row.prompt, row.chosen))
            for row, answer in zip(rows, sampled, strict=True)
        ]
        shares[f"{name}_right"] = sum(kind in RIGHT for kind in kinds) / len(kinds)
        shares[f"{name}_wrong"] = sum(kind in WRONG for kind in kinds) / len(kinds)
    return shares


def claims() -> dict[str, float]:
    """Findings that are judged, and the share of them that is decided."""
    figures: dict[str, float] = {}
    worlds = {"builtin": ""} | (
        {"tinystories": "_stories"} if "DYNOLAB_TEST_DATA" in os.environ else {}
    )
    for world, label in worlds.items():
        _, table = run("reproduce", world)
        verdicts = list(table["verdicts"].values())
        decided = sum(verdict in ("appears", "does not") for verdict in verdicts)
        figures[f"claims_total{label}"] = float(len(verdicts))
        figures[f"claims_decided_fraction{label}"] = decided / len(verdicts)
    return figures


def doses() -> dict[str, float]:
    """Right answers by dose, where every arm has learned as much."""
    _, table = run("mitigation", "doses")
    numbers, seeds = table["numbers"], table["seeds"]
    stopped = {name.split("/")[0] for name in numbers if name.endswith("/stopped_at")}
    ends = {stage.rpartition("-")[0] for stage in stopped}
    arms = [arm for arm in ends if all(f"{arm}-{seed}" in stopped for seed in seeds)]
    right = {
        arm: np.array([numbers[f"{arm}-{seed}-said/train/right"] for seed in seeds]) for arm in arms
    }
    best = max((arm for arm in arms if arm.startswith("dose-")), key=lambda arm: right[arm].mean())
    print({arm: shares.tolist() for arm, shares in right.items()}, best, flush=True)
    figures = {"remedies": float(len(arms) - 1)}
    for name, other in (("dpo", "dpo"), ("best_dose", best)):
        difference, key = (
            mean_interval(right["designed"] - right[other]),
            f"designed_right_minus_{name}",
        )
        figures |= {
            key: difference.mean,
            f"{key}_low": difference.low,
            f"{key}_high": difference.high,
        }
    return figures


def step_cost(folder: Path) -> dict[str, float]:
    """Over trainings that take turns; their first step is left out."""
    parameters = study_parameters(SEEDS[0])
    prepare(parameters, folder / "cost")
    plain = parameters.preference.model_copy(
        update={"steps": STEPS, "record_steps": (), "probe_every": 0, "ledger": None}
    )
    objective = DPOConfig(designed_dose=DesignedDoseConfig())
    trainings = plain, plain.model_copy(update={"objective": objective})
    times: list[list[float]] = [[], []]
    for number in range(ROUNDS):
        for config, own in zip(trainings, times, strict=True):
            output = folder / "cost" / f"{config is plain}-{number}"
            finetune(config, folder / "cost" / SFT, folder / "cost" / "world", output)
            lines = [line.metrics for line in read_rows(output / "metrics.jsonl", MetricsLine)]
            speeds = [values[SPEED] for values in lines if SPEED in values][1:]
            own.append(1 / statistics.median(speeds))
    return ratio("designed_step_cost", times[1], times[0])


def study_seconds(folder: Path) -> dict[str, float]:
    """Of the built-in study, cold."""
    return {"study_s": seconds(lambda: study(folder / "home"))}


PARTS = {
    "known": known,
    "claims": lambda _: claims(),
    "doses": lambda _: doses(),
    "cost": step_cost,
    "study": study_seconds,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(PARTS))
    only = parser.parse_args().only
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        parts = [partial(part, place) for name, part in PARTS.items() if only in (None, name)]
        report(gather(parts), at_least=AT_LEAST, at_most=AT_MOST)


if __name__ == "__main__":
    main()
