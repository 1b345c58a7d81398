from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dynolab.report.audit import write_audit_page
from dynolab.report.comparison.mitigation import write_mitigation_page
from dynolab.report.inputs.study import (
    AuditPageInputs,
    ReportInputs,
    Squeezing,
    StageFacts,
    StudyFacts,
)
from dynolab.report.study.page import write_report
from dynolab.results.study import TokenMap, Training
from tests.report.audits import audit
from tests.report.forces import kernel
from tests.report.ledgers import write_ledger
from tests.report.pairs import ARMS, mitigation
from tests.report.parsed import CANARY, Parsed, obeys_no_text
from tests.report.synthetic import study
from tests.report.test_report import found

LOADS = {"src", "srcset", "data", "poster", "action", "background"}


def hostile(folder: Path) -> ReportInputs:
    """A study in which every text that models or data wrote tries to be markup.

    **Arguments:** `folder`: for the tables of its ledger.
    """
    inputs = study()
    facts = StudyFacts(
        name=CANARY,
        config_text=f"name: {CANARY}\n</pre></script>{CANARY}",
        map_command=f"dynolab forces {CANARY}",
        explore_command=f"dynolab explore {CANARY}",
        remedies_command=f"dynolab mitigation {CANARY}",
        stages=(StageFacts(stage=CANARY, key=CANARY, seconds=1.0, mlflow_run_id=CANARY),),
    )
    tokens = ["</script>", CANARY, "<b>bold</b>", "%{x}"]
    pushes = TokenMap(
        stage="dpo",
        step=1,
        observed_id=CANARY,
        updating_id=CANARY,
        learning_rate=0.1,
        observed_tokens=tokens,
        chosen_tokens=tokens,
        rejected_tokens=[CANARY],
        force=[[0.1, -0.2, 0.3, 0.0, -0.1]] * 4,
    )

    def renamed(row):
        return row.model_copy(
            update={
                "pair_id": row.pair_id + CANARY,
                "kind": CANARY if row.kind == "irr_hum" else row.kind,
            }
        )

    def renamed_in(one: Training) -> Training:
        return replace(
            one,
            name=CANARY,
            probes=tuple(map(renamed, one.probes)),
            forces=tuple(map(renamed, one.forces)),
            token_map=one.token_map and pushes,
        )

    said = dict.fromkeys(("model", "pair_id", "prompt", "chosen", "answer", "taken_from"), CANARY)
    squeezed = found()
    risen = tuple(row.model_copy(update={"training": CANARY}) for row in squeezed.risen)
    made = tuple(one.model_copy(update={"model": CANARY}) for one in squeezed.generations)
    return ReportInputs(
        facts,
        squeezing=Squeezing(risen, (), made),
        trainings=tuple(map(renamed_in, inputs.trainings)),
        contrasts=tuple(map(renamed_in, inputs.contrasts)),
        kernel=kernel(("base", "sft"), CANARY),
        audit=audit(text=CANARY, mark=CANARY),
        ledger=write_ledger(folder, tokens=(f" {CANARY}", "<b>", CANARY), rejected=CANARY),
        answers=tuple(answer.model_copy(update=said) for answer in inputs.answers),
        watched=tuple(
            renamed(row).model_copy(
                update={"prompt": CANARY, "response": CANARY, "made_by": CANARY}
            )
            for row in inputs.watched
        ),
    )


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hostile")
    write_report(hostile(tmp_path_factory.mktemp("ledger")), place)
    return place


WRITTEN: dict[str, Callable[[Path], object]] = {
    "audit.html": lambda folder: write_audit_page(
        AuditPageInputs("dpo", audit(text=CANARY, mark=CANARY), name=CANARY, settings=CANARY),
        folder,
    ),
    "mitigation.html": lambda folder: write_mitigation_page(
        mitigation(CANARY),
        folder,
        settings=CANARY,
        stages=[StageFacts(stage=CANARY, key="0" * 64)],
        commands=dict.fromkeys(ARMS, CANARY),
    ),
}


@pytest.mark.parametrize("page", WRITTEN)
def test_every_page_shows_text_of_others_and_obeys_none(page: str, tmp_path: Path) -> None:
    WRITTEN[page](tmp_path)
    assert CANARY in " ".join(obeys_no_text(tmp_path, page).words)


def pages(folder: Path) -> list[Path]:
    return [folder / "report.html", *sorted((folder / "figures").glob("*.html"))]


def test_text_of_others_is_shown_and_never_obeyed(hostile_folder: Path) -> None:
    words = "".join(obeys_no_text(hostile_folder, "report.html").words)
    assert words.count(CANARY) >= 10
    assert f"dynolab mitigation {CANARY}" in words


def test_plotly_is_given_escaped_text(hostile_folder: Path) -> None:
    """Plotly turns `<b>` and `<a>` in labels into markup; entities it shows as characters."""
    for file in (hostile_folder / "figures").glob("*.json"):
        content = file.read_text().replace("<extra></extra>", "").replace("<br>", "")
        content = re.sub(r"</?b>(?!bold)", "", content)
        assert "<b" not in content, file.name


def test_only_the_pages_own_scripts_may_run(hostile_folder: Path) -> None:
    found = Parsed((hostile_folder / "report.html").read_text())
    code = [text for a, text in found.scripts if a.get("type") != "application/json"]
    assert len(code) == 2
    hashes = [base64.b64encode(hashlib.sha256(c.encode()).digest()).decode() for c in code]
    script_src = re.search(r"script-src ([^;]*);", found.policy)
    assert script_src and script_src[1].split() == [f"'sha256-{h}'" for h in hashes]
    assert "default-src 'none'" in found.policy


def test_pages_load_nothing_from_elsewhere(hostile_folder: Path) -> None:
    for page in pages(hostile_folder):
        found = Parsed(page.read_text())
        for tag, attributes in found.elements:
            loaded = [attributes[name] for name in LOADS & set(attributes)]
            loaded += [attributes.get("href")] if tag == "link" else []
            assert all(v in ("plotly.min.js", "data:,") for v in loaded), (page.name, tag)
            assert "url(" not in (attributes.get("style") or "")
        assert "http" not in found.policy
        style = page.read_text().split("<style>")[1].split("</style>")[0]
        assert "@import" not in style
        assert "url(" not in style
    assert (hostile_folder / "figures" / "plotly.min.js").exists()


def test_pages_lead_nowhere(hostile_folder: Path) -> None:
    """Links lead to the page's own sections."""
    found = Parsed((hostile_folder / "report.html").read_text())
    links = [attributes["href"] or "" for tag, attributes in found.elements if tag == "a"]
    assert links and all(link.startswith("#") for link in links)
