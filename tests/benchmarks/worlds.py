"""What can be judged in the built-in worlds: whether facts are known, and which claims appear.

    python -m tests.benchmarks.worlds [--only known claims groups]

Prints one JSON object on its last line. Settings were tuned on seeds 0 to 4; figures are means over
seeds 100 to 104, with the ends `…_low` and `…_high` of their 95% t-intervals.

- `heldout_right_at_preference_start`: share of held-out questions that the finetuned model answers
  rightly, greedily; `…_least` and `…_most` seed by seed. `heldout_right_base`: before finetuning.
  `tuned_right_at_preference_start`: of the questions finetuned on.
- `dpo_…`: what DPO changes: nats on training prompts for `chosen`, `rejected`, `argmax` (y*),
  `gap`; shares of greedy answers for `tuned_right`, `heldout_right`, `heldout_wrong`.
- `claims_total`: the papers' findings that `dynolab reproduce` judges in the built-in world, in the
  home that DYNOLAB_HOME names or in an empty one; `claims_decided_fraction`: of how many the
  interval decides, either way; `…_stories`: on a pretrained story model, where DYNOLAB_TEST_DATA
  names it.
- `pass_at_16_simko_minus_grpo`: on held-out prompts of the world of two strategies
  (`grpo_strategies.yaml`), paired by seed. `displaced_nthr_minus_grpo`: share of questions of the
  world of sums (`grpo_sums.yaml`) whose right answers one update does not raise;
  `nthr_precision`: of the tokens of wrong answers that NTHR chooses, the share that drags right
  answers down; `harmful_share`: the same of a random choice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dynolab.data.rows import Example
from dynolab.data.sources.load import load_data
from dynolab.data.world.answer_kinds import RIGHT, WRONG, answer_kind
from dynolab.data.world.lexicon import answered
from dynolab.rollouts.decoding import SampleConfig, sample_responses
from dynolab.statistics import mean_interval
from models.language import load_language_model, load_tokenizer
from tests.benchmarks.figures import ROOT, STUDIES, main
from tests.study.arms import OFF_POLICY, SFT, prepare, study_parameters, train_arm
from tests.study.findings import measure, probe_changes

SEEDS = (100, 101, 102, 103, 104)
START = "heldout_right_at_preference_start"
AT_LEAST = {
    f"{START}_least": 0.3,
    "dpo_argmax_low": 0.0,
    "dpo_gap_low": 0.0,
    "claims_decided_fraction": 0.9,
    "claims_decided_fraction_stories": 0.75,
}
AT_MOST = {
    f"{START}_most": 0.7,
    "dpo_chosen_high": 0.0,
    "dpo_rejected_high": 0.0,
    "dpo_tuned_right_high": 0.0,
}
GROUPS = {
    "strategies": {"pass_at_16_simko_minus_grpo": "differences/simko/heldout/pass_at_16"},
    "sums": {
        "displaced_nthr_minus_grpo": "differences/nthr/displaced/share",
        "nthr_precision": "means/nthr/tokens/precision",
        "harmful_share": "means/nthr/tokens/harmful",
    },
}
"""World → figure → its name in the table of the flow's page."""


def run(flow: str, world: str, *changes: str) -> dict[str, Any]:
    """The table that a flow in a world leaves beside its page.

    **Arguments:** `changes`: of its settings, as `--set` takes them.
    """
    with tempfile.TemporaryDirectory() as empty:
        home = os.environ.get("DYNOLAB_HOME") or empty
        study = STUDIES / f"{flow}_{world}.yaml"
        command = [sys.executable, "-m", "flows.cli", flow, "--config", str(study)]
        command += chain.from_iterable(("--set", change) for change in changes)
        environment = os.environ | {"DYNOLAB_HOME": home}
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=ROOT, env=environment)
        table: dict[str, Any] = json.loads(Path(home, f"reports/{flow}-{world}.json").read_text())
    return table


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
        "tuned_right_at_preference_start": float(np.mean([each["tuned_right"] for each in starts])),
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


def claims(_: Path) -> dict[str, float]:
    """Findings that are judged, and the share of them that is decided."""
    figures: dict[str, float] = {}
    worlds = {"builtin": ""}
    if "DYNOLAB_TEST_DATA" in os.environ:
        worlds["tinystories"] = "_stories"
    for world, label in worlds.items():
        verdicts = list(run("reproduce", world)["verdicts"].values())
        decided = sum(verdict in ("appears", "does not") for verdict in verdicts)
        figures[f"claims_total{label}"] = float(len(verdicts))
        figures[f"claims_decided_fraction{label}"] = decided / len(verdicts)
    return figures


def groups(_: Path) -> dict[str, float]:
    """GRPO and its relatives."""
    figures: dict[str, float] = {}
    for world, names in GROUPS.items():
        found = run("grpo", world)["estimates"]
        for label, name in names.items():
            ends = {f"{label}_{end}": found[name][end] for end in ("low", "high")}
            figures |= {label: found[name]["mean"], **ends}
    return figures


if __name__ == "__main__":
    parts = {"known": known, "claims": claims, "groups": groups}
    main(parts, at_least=AT_LEAST, at_most=AT_MOST)
