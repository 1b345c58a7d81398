"""The page of the papers' findings holds its numbers, and obeys no text of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynolab.report.inputs.arms import PairRun
from dynolab.results.arms import (
    AFTER_EXTENDED,
    AFTER_SFT,
    FROM_BASE,
    RESAMPLED,
    SFT,
    Divergence,
)
from dynolab.results.study import TrainingSummary
from dynolab.statistics import Interval
from experiments.reproduce.claims import CLAIMS
from experiments.reproduce.page import ReproductionInputs, write_reproduction_page
from tests.report.parsed import CANARY, check_figures, obeys_no_text, words_of
from tests.report.synthetic import DPO, SFT as SFT_SHAPES, line, probes

PATHS = {
    SFT: SFT_SHAPES,
    AFTER_SFT: DPO,
    AFTER_EXTENDED: DPO | {"chosen": line(-1.0)},
    RESAMPLED: DPO,
}


def reproduction(word: str = "", seeds: tuple[int, ...] = (0, 1, 2)) -> ReproductionInputs:
    """Everything but DPO from the base model, which diverged."""
    runs = {
        (name, seed): PairRun(
            probes(shapes, 100, seed=seed),
            TrainingSummary(steps=100, objective="dpo", rows={}),
            won=Interval(0.6 + 0.01 * seed, 0.55, 0.7, 40) if name == AFTER_EXTENDED else None,
        )
        for name, shapes in PATHS.items()
        for seed in seeds
    }
    lost = {
        (FROM_BASE, seed): PairRun((), diverged=Divergence(step=7, reason=word)) for seed in seeds
    }
    return ReproductionInputs(
        seeds=seeds,
        runs={**runs, **lost},
        same_pairs=True,
        name="papers" + word,
        settings=f"name: {word}",
    )


@pytest.mark.parametrize("seeds", [(0, 1, 2), (4,)])
def test_every_finding_is_on_the_page_with_its_verdict(
    tmp_path: Path, seeds: tuple[int, ...]
) -> None:
    metrics = write_reproduction_page(reproduction(seeds=seeds), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    outcomes = {verdict["id"]: verdict["outcome"] for verdict in summary["verdicts"]}
    assert len(outcomes) == len(CLAIMS) + 1
    appear = [outcomes[name] for name in ("dpo/gap", "extended/chosen", "extended/won")]
    assert appear == ["appears"] * 3 and outcomes["from-base/gap"] == "not measured"
    assert sum(v for k, v in metrics.items() if k.startswith("claims/")) == len(outcomes)
    words = words_of(tmp_path / "reproduction.html", " ")
    assert ("intervals over seeds and prompts" in words) == (len(seeds) > 1)
    assert "diverged after 7 steps" in words and "nan" not in words.split()
    assert check_figures(tmp_path, "reproduction.html") >= 1


def test_text_of_others_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    write_reproduction_page(reproduction(CANARY), tmp_path)
    assert CANARY in " ".join(obeys_no_text(tmp_path, "reproduction.html").words)
