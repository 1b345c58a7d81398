"""What the instrument says to questions that people bring, beside the simplest other answers.

    DYNOLAB_TEST_DATA=… python -m tests.benchmarks.questions [--only entropy_rule]

Prints one JSON object on its last line. Intervals are 95% t-intervals over seeds.

- `functionals`: kinds of which a ledger has accounts (log π of answers and of y*, and what is
  measured at answers); `gradient_error_max`: of the measured ones, against autograd through torch's
  own distributions, in float64; `closure_max`: over real steps of SGD and AdamW, over the path.
  `cost_over_logp_entropy`, `…_kl`: seconds of their slopes over those of log π.
- `arms_judged_held_out`: arms of the kept table of `grpo_entropy.yaml` whose pass@1 and pass@k on
  held-out prompts are there over five seeds; `arms_better`: of these, with more pass@k than GRPO
  and no less pass@1, by their intervals.
- `designed_groups_constraint`: most that a step with a designed dose for groups lowers what it
  protects, over what it would without the dose; by autograd, on answers of a drifted policy.
- `band_right_…`, `second_order_share_…`: see `tests.benchmarks.pair_questions`.
- `planted_rows_…`: see `tests.benchmarks.planted_rows`.
- `entropy_rule_rank_correlation`, `…_low`, `…_high`: how well S of single tokens (arXiv
  2602.03392) orders a question's sampled answers by what each does to their entropy, exactly;
  `entropy_rule_sign_agreement`: how often it tells the sign. `entropy_advantage_…`: the same of
  minus the advantage. In the first step of GRPO in the world of strategies; means over questions.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dynolab.forces import PolicyFunction
from dynolab.forces.function.weights import flatten
from dynolab.forces.ledger.account import Ledger
from dynolab.forces.ledger.functional import Functional, Term, slopes_of
from dynolab.forces.ledger.grouped import GroupedGradients
from dynolab.forces.ledger.measured import Source, measured_means, vocabulary_logps
from dynolab.forces.ledger.measures import DivergenceFrom, entropy
from dynolab.training.config import OptimizerConfig
from models.language import load_language_model
from tests.benchmarks.figures import STUDIES, in_turns, main, real_inputs, seconds
from tests.benchmarks.pair_questions import pair_questions
from tests.benchmarks.planted_rows import planted_rows
from tests.benchmarks.worlds import run
from tests.forces.small_models import encoded, neox, trained
from tests.forces.test_measured import ANSWERS, MEASURABLE, plain_value, reward
from tests.training.small import make_files
from tests.training.test_dose import OneGroupStep

ENTROPY_RULES = {
    "entropy_rule_rank_correlation": "entropy_rule/rank_correlation",
    "entropy_rule_sign_agreement": "entropy_rule/sign_agreement",
    "entropy_advantage_rank_correlation": "entropy_advantage/rank_correlation",
    "entropy_advantage_sign_agreement": "entropy_advantage/sign",
}
DOSED = (("right", "batch"), ("right", "group"), ("right", "token"), ("entropy", "token"))
GROUP_SEEDS = 5
# Only what the test of one update needs: no training to speak of, and few samples of few prompts.
FIRST_STEP = (
    "arms={grpo: {name: grpo}}",
    "training.steps=1",
    "training.probe_every=0",
    "evaluation={k: 1, samples: 4, prompts: 4}",
)


def functionals(_: Path) -> dict[str, Any]:
    """Gradients against autograd in float64, closure over real steps, and cost beside log π."""
    figures: dict[str, Any] = {"functionals": 2 + len(MEASURABLE)}
    policy = PolicyFunction(neox(), torch.float64)
    reference = PolicyFunction(neox(seed=3), torch.float64)
    source = Source(lambda answers: vocabulary_logps(reference, answers), reward)
    watched = [q for _, q in measured_means(MEASURABLE, ANSWERS, source, "kinds")]
    gradients = GroupedGradients.build(policy, policy.weights, [encoded(0), encoded(1)])
    slopes = slopes_of(watched, gradients, policy.weights)
    errors = []
    for kind, row in zip(MEASURABLE, slopes.gradients, strict=True):
        leaves = {name: w.clone().requires_grad_() for name, w in policy.weights.items()}
        truth = plain_value(kind, policy, leaves)
        pulls = torch.autograd.grad(truth, list(leaves.values()), materialize_grads=True)
        expected = flatten(dict(zip(leaves, pulls, strict=True)))
        errors.append(float((row - expected).norm() / expected.norm()))
    figures["gradient_error_max"] = max(errors)
    closures = []
    for name in ("sgd", "adamw"):
        ledger = Ledger(policy, watched)
        records = trained(OptimizerConfig(name=name, learning_rate=1e-3, weight_decay=0.1))
        steps = [ledger.enter(record) for record in reversed(records)][::-1]
        explained = steps[0].carried_in
        for step in steps:
            explained = explained + step.lines.sum(0) + step.together + step.decay
            explained = explained + step.rounding + step.residual
        path = sum(step.measured.abs() for step in steps)
        whole = steps[-1].after - steps[0].before
        closures.append(float(((explained - whole).abs() / path).max()))
    figures["closure_max"] = max(closures)
    return figures | _costs()


def _costs() -> dict[str, float]:
    """Seconds of each measure's slopes over those of log π, on a real model."""
    (folder,) = real_inputs("models/tinystories-656k")
    model = load_language_model(folder)
    policy = PolicyFunction(model)
    answers = [encoded(seed, 40, 40) for seed in range(8)]
    at = policy.weights
    gradients = GroupedGradients.build(policy, at, answers[:2])
    logps = vocabulary_logps(policy, answers)
    weight = 1 / len(answers)
    kl = [Term(a, weight, DivergenceFrom(r)) for a, r in zip(answers, logps, strict=True)]
    watched = {
        "logp": Functional.mean("logp", answers),
        "entropy": Functional.mean("entropy", answers, entropy),
        "kl": Functional("kl", tuple(kl)),
    }
    works = [partial(slopes_of, [functional], gradients, at) for functional in watched.values()]
    times = in_turns(*(partial(seconds, work) for work in works), repeats=9)
    best = {name: min(of_work) for name, of_work in zip(watched, times, strict=True)}
    return {f"cost_over_logp_{name}": best[name] / best["logp"] for name in ("entropy", "kl")}


def entropy_rule(_: Path) -> dict[str, float]:
    """S of the answers' tokens against the exact lines of the entropy."""
    table = run("grpo", "strategies", *FIRST_STEP)["estimates"]
    figures: dict[str, float] = {}
    for name, figure in ENTROPY_RULES.items():
        over_seeds = table[f"means/grpo/{figure}"]
        ends = {f"{name}_{end}": over_seeds[end] for end in ("low", "high")}
        figures |= {name: over_seeds["mean"], **ends}
    return figures


def group_arms(_: Path) -> dict[str, int]:
    """What the kept table says of the remedies of entropy."""
    table = json.loads((STUDIES / "results" / "grpo-entropy.json").read_text())
    differences = table["estimates"]
    judged_arms, better_arms = set[str](), set[str]()
    arms = {key.split("/")[1] for key in differences if key.startswith("differences/")}
    for arm in arms - {"before"}:
        held_out = [
            differences.get(f"differences/{arm}/heldout/{figure}")
            for figure in ("pass_at_1", "pass_at_16")
        ]
        if any(figure is None or figure["n"] < GROUP_SEEDS for figure in held_out):
            continue
        judged_arms.add(arm)
        first, many = held_out
        if many["low"] > 0 and first["high"] >= 0:
            better_arms.add(arm)
    return {"arms_judged_held_out": len(judged_arms), "arms_better": len(better_arms)}


def group_doses(home: Path) -> dict[str, float]:
    """How well a step's designed doses keep what they protect."""
    inputs = home / "inputs"
    make_files(inputs)
    worst = 0.0
    for number, (protect, per) in enumerate(DOSED):
        one = OneGroupStep(inputs, home / str(number), per=per, protect=protect)
        (dose,) = one.doses(one.batches(1))
        full, dosed = (one.effect(doses, protect) for doses in (torch.ones_like(dose), dose))
        worst = max(worst, max(0.0, -dosed) / abs(full))
    return {"designed_groups_constraint": worst}


if __name__ == "__main__":
    main(
        {
            "functionals": functionals,
            "entropy_rule": entropy_rule,
            "group_arms": group_arms,
            "group_doses": group_doses,
            "pair_questions": pair_questions,
            "planted_rows": planted_rows,
        },
        at_least={"functionals": 5, "planted_rows_precision": 0.8, "arms_judged_held_out": 8},
        at_most={
            "designed_groups_constraint": 0.05,
            "gradient_error_max": 1e-6,
            "closure_max": 1e-5,
            "cost_over_logp_entropy": 1.3,
            "cost_over_logp_kl": 1.3,
        },
    )
