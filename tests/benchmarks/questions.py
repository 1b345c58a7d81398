"""What the instrument says to questions that people bring, beside the simplest other answers.

    python -m tests.benchmarks.questions [--only entropy_rule]

Prints one JSON object on its last line. Intervals are 95% t-intervals over seeds 100 to 104.

- `entropy_rule_rank_correlation`, `…_low`, `…_high`: how well S of single tokens (arXiv
  2602.03392) orders a question's sampled answers by what each does to their entropy, exactly;
  `entropy_rule_sign_agreement`: how often it tells the sign. `entropy_advantage_…`: the same of
  minus the advantage. In the first step of GRPO in the world of strategies; means over questions.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.figures import main
from tests.benchmarks.worlds import run

ENTROPY_RULES = {
    "entropy_rule_rank_correlation": "entropy_rule/rank_correlation",
    "entropy_rule_sign_agreement": "entropy_rule/sign_agreement",
    "entropy_advantage_rank_correlation": "entropy_advantage/rank_correlation",
    "entropy_advantage_sign_agreement": "entropy_advantage/sign",
}
# Only what the test of one update needs: no training to speak of, and few samples of few prompts.
FIRST_STEP = (
    "arms={grpo: {name: grpo}}",
    "training.steps=1",
    "training.probe_every=0",
    "evaluation={k: 1, samples: 4, prompts: 4}",
)


def entropy_rule(_: Path) -> dict[str, float]:
    """S of the answers' tokens against the exact lines of the entropy."""
    table = run("grpo", "strategies", *FIRST_STEP)["estimates"]
    figures: dict[str, float] = {}
    for name, figure in ENTROPY_RULES.items():
        over_seeds = table[f"means/grpo/{figure}"]
        ends = {f"{name}_{end}": over_seeds[end] for end in ("low", "high")}
        figures |= {name: over_seeds["mean"], **ends}
    return figures


if __name__ == "__main__":
    main({"entropy_rule": entropy_rule})
