"""The phenomena of Ren & Sutherland (arXiv 2407.10490, §4) in the built-in world, over seeds.

The study's settings were found on other seeds; these have only ever been measured. What counts is
the sign: a quantity shows where its 95% t-interval over seeds lies on the expected side.
"""

from __future__ import annotations

import time

import pytest

from dynolab.audit.foresight import RISKY
from dynolab.claims.study import CLAIMS
from tests.study.arms import FLAT, RESAMPLED
from tests.study.findings import Findings, measure_seeds, summarise, table_of
from tests.study.reported import foresight_findings, kernel_findings

pytestmark = [pytest.mark.study, pytest.mark.timeout(3600)]

SEEDS = (100, 101, 102, 103, 104)


@pytest.fixture(scope="session")
def findings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """All arms, measured once; the table goes to the terminal and beside the results."""
    folder, began = tmp_path_factory.mktemp("phenomena"), time.monotonic()
    found = dict(summarise(measure_seeds(SEEDS, folder)))
    found["kernel"] = kernel_findings(SEEDS, folder)
    found["foresight"] = foresight_findings(SEEDS, folder)
    table = table_of(found)
    table.to_json(folder / "findings.json", orient="records", indent=1, force_ascii=False)
    shown = table.drop(columns="values").to_string(index=False)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n\n{shown}\n\n{time.monotonic() - began:.0f} s, {folder}/findings.json\n")
    return found


@pytest.mark.parametrize(
    "name",
    [
        *(claim.id for claim in CLAIMS),
        f"contrast/{RESAMPLED}",
        f"contrast/{FLAT}",
        "sft/forces",
        "dpo/forces",
    ],
)
def test_shows_over_seeds(findings: Findings, name: str) -> None:
    expected = [finding for finding in findings[name] if finding.sign]
    missing = [str(finding) for finding in expected if finding.outcome != "holds"]
    assert expected
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("stage", ["sft", "dpo"])
def test_prediction_has_the_measured_direction(findings: Findings, stage: str) -> None:
    values = {finding.name: finding.values for finding in findings[f"{stage}/forces"]}
    measured, predicted = (
        values[f"{stage} step on chosen: {w}"] for w in ("measured", "predicted")
    )
    assert all(one * other > 0 for one, other in zip(measured, predicted, strict=True))


def test_ranks_of_the_kernel_are_reported(findings: Findings) -> None:
    """Where they hold and where they break down is found, not expected."""
    values = [value for finding in findings["kernel"] for value in finding.values]
    assert len(values) == 7 * len(SEEDS)
    assert all(-1 <= value <= 1 for value in values)


def test_what_foresees_falling_answers_is_reported(findings: Findings) -> None:
    """Which ranking is good is found, not expected."""
    found = findings["foresight"]
    assert len(found) == 2 * 2 * len(RISKY)
    for one in found:
        low = 0 if one.name.endswith("AUC") else -1
        assert all(low <= value <= 1 for value in one.values)
