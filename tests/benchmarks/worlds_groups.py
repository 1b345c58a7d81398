"""Worlds in which claims about GRPO and its relatives can be judged: pass@k, displacement, tokens.

    python -m tests.benchmarks.worlds_groups [--only strategies|sums]

Runs `deploy/studies/grpo_strategies.yaml` and `grpo_sums.yaml` in an empty home, or in the one that
DYNOLAB_HOME names, on their seeds 100 to 104; settings were tuned on seeds 0 to 4. Prints one JSON
object on its last line. Every figure is a mean over seeds, `…_low` and `…_high` the ends of its 95%
t-interval; changes are since the arms' start, differences paired by seed.

- `pass_at_16_change_<arm>`, `heldout_gain_<arm>`: on held-out prompts of the world of two
  strategies, the change of pass@16 and of pass@1; `pass_at_16_simko_minus_grpo`.
- `displaced_share_<arm>`: share of questions of the world of sums whose right answers one update
  does not raise; `displaced_nthr_minus_grpo`.
- `nthr_precision`, `nthr_recall`, `nthr_harm_found`: of the tokens of wrong answers that NTHR
  chooses, the share that drags right answers down, exactly; the share of those that drag, and of
  the nats that they cost, that it chooses. `harmful_share`: the precision of a random choice.
- `<world>_wall_s`: seconds of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import gather, report, timed

ROOT = Path(__file__).parents[2]
PASS_16, PASS_1 = "heldout/pass_at_16", "heldout/pass_at_1"


def run(flow: str, world: str) -> tuple[float, dict[str, Any]]:
    """Seconds of a flow in a world, and the table that it leaves beside its page."""
    with tempfile.TemporaryDirectory() as empty:
        home = os.environ.get("DYNOLAB_HOME") or empty
        study = ROOT / "deploy" / "studies" / f"{flow}_{world}.yaml"
        command = [sys.executable, "-m", "flows.cli", flow, "--config", str(study)]
        taken, _ = timed(
            lambda: subprocess.run(
                command,
                check=True,
                stdout=sys.stderr,
                cwd=ROOT,
                env=os.environ | {"DYNOLAB_HOME": home},
            )
        )
        return taken, json.loads((Path(home) / "reports" / f"{flow}-{world}.json").read_text())


def strategies() -> dict[str, float]:
    """pass@1 and pass@16 of every arm on held-out prompts."""
    taken, table = run("grpo", "strategies")
    found = table["estimates"]
    figures = {"strategies_wall_s": taken}
    for arm in ("grpo", "nthr", "simko", "simko-wide", "entropy", "positives"):
        for name, figure in (("pass_at_16_change", PASS_16), ("heldout_gain", PASS_1)):
            label = f"{name}_{arm.replace('-', '_')}"
            figures |= _interval(label, found, f"changes/{arm}/{figure}")
    return figures | _interval("pass_at_16_simko_minus_grpo", found, f"differences/simko/{PASS_16}")


def sums() -> dict[str, float]:
    """Displaced questions, and how well NTHR finds the tokens that do harm."""
    taken, table = run("grpo", "sums")
    found = table["estimates"]
    figures = {"sums_wall_s": taken}
    for arm in ("grpo", "nthr", "random", "positives"):
        figures |= _interval(f"displaced_share_{arm}", found, f"means/{arm}/displaced/share")
    named = {
        "displaced_nthr_minus_grpo": "differences/nthr/displaced/share",
        "displaced_nthr_minus_random": "nthr/displaces_fewer_than_random/nthr − random",
        "nthr_precision": "means/nthr/tokens/precision",
        "nthr_recall": "means/nthr/tokens/recall",
        "nthr_harm_found": "means/nthr/tokens/harm_found",
        "harmful_share": "means/nthr/tokens/harmful",
        "random_precision": "means/random/tokens/precision",
    }
    for label, name in named.items():
        figures |= _interval(label, found, name)
    return figures


def _interval(label: str, found: Mapping[str, Any], name: str) -> dict[str, float]:
    interval = found[name]
    return {
        label: interval["mean"],
        f"{label}_low": interval["low"],
        f"{label}_high": interval["high"],
    }


PARTS: dict[str, Callable[[], dict[str, float]]] = {"strategies": strategies, "sums": sums}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=list(PARTS))
    only = parser.parse_args().only
    report(gather(part for name, part in PARTS.items() if only in (None, name)))


if __name__ == "__main__":
    main()
