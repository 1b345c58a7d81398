"""The page of the papers' findings: every claim with what was measured of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dynolab.claims.reproduction import AFTER_EXTENDED, AFTER_SFT, CLAIMS, FROM_BASE, RESAMPLED, SFT
from dynolab.claims.verdict import Verdict
from dynolab.data.rows import read_rows
from dynolab.report.comparison.mitigation import write_mitigation_page
from dynolab.report.comparison.reproduction import write_reproduction_page
from dynolab.report.inputs.arms import PairRun, ReproductionInputs
from dynolab.report.inputs.study import read_compared
from dynolab.report.study.page import write_report
from dynolab.results.arms import Divergence
from dynolab.results.study import TrainingSummary
from dynolab.statistics import Interval
from tests.report.pairs import mitigation
from tests.report.parsed import CANARY, Parsed, check_figures, words_of
from tests.report.synthetic import DPO, SFT as SFT_SHAPES, line, probes, study

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
        seeds=seeds, runs={**runs, **lost}, name="papers" + word, settings=f"name: {word}"
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
    assert "diverged after 7 steps" in words and "nan" not in words.split()
    assert check_figures(tmp_path, "reproduction.html") >= 1


def test_a_study_s_report_shows_findings_and_remedies_of_runs_beside_it(tmp_path: Path) -> None:
    write_reproduction_page(reproduction(CANARY), tmp_path / "findings")
    write_mitigation_page(mitigation(CANARY), tmp_path / "remedies")
    compared = read_compared(
        tmp_path / "remedies", tmp_path / "findings", missing={"mitigation": CANARY}
    )
    report = tmp_path / "report"
    write_report(replace(study(), compared=compared), report)
    page = (report / "report.html").read_text()
    assert CANARY not in page
    shown = {a.get("id") for _, a in Parsed(page).elements}
    assert {"reproduction", "remedies", "try-next"} <= shown
    verdicts = list(read_rows(tmp_path / "findings/verdicts.jsonl", Verdict))
    assert list(compared.findings) == verdicts
    assert len({verdict.outcome for verdict in verdicts}) > 1
