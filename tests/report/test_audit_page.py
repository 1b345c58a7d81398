from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynolab.report.audit.foresight import foreseen_figure, foresight_section
from dynolab.report.audit.page import write_audit_page
from dynolab.report.audit.pairs import agreement_figure, pull_figure, worst_section
from dynolab.report.inputs.audit import Audit, AuditPageInputs
from dynolab.report.inputs.files import StageFacts
from tests.report.audits import audit
from tests.report.parsed import CANARY, Parsed, check_figure, check_figures, obeys_no_text, words_of


def inputs(found: Audit, name: str = "pairs") -> AuditPageInputs:
    stages = (StageFacts(stage="audit", key="4f0c" * 16, seconds=3.0),)
    return AuditPageInputs("dpo", found, name=name, settings=f"name: {name}", stages=stages)


@pytest.mark.parametrize("trained", [True, False])
def test_the_page_says_what_was_found(trained: bool, tmp_path: Path) -> None:
    found = audit(trained=trained)
    write_audit_page(inputs(found), tmp_path)
    page = (tmp_path / "audit.html").read_text()
    assert "What 24 preference pairs would do to their chosen answers under DPO" in page
    assert ("Predicted before training" in page) == trained
    assert ("What was predicted, and what happened" in page) == trained
    outweighed = sum(row.force < 0 for row in found.rows if row.split == "train")
    assert f"in {outweighed} that outweighs the pull up" in page
    check_figures(tmp_path, "audit.html")


def test_the_worst_pairs_come_first_with_their_texts() -> None:
    found = audit()
    markup = worst_section(found, "force").markup
    own = sorted((row for row in found.rows if row.split == "train"), key=lambda row: row.force)
    places = [markup.index(row.pair_id) for row in own[:10]]
    assert places == sorted(places)
    assert own[10].pair_id not in markup
    assert found.texts["train", own[0].pair_id].chosen.strip() in markup


def test_the_foresight_table_holds_both_splits_and_says_what_foresees() -> None:
    markup = foresight_section(audit().foresight).markup
    assert "of 24 training and" in markup
    words = "".join(Parsed(markup).words)
    assert "Best predictor: force of all pairs on it" in words
    assert markup.count("<tr>") == 9
    assert not re.search(r"\bnan\b", markup)


def test_few_pairs_and_no_falls_leave_gaps_and_no_errors(tmp_path: Path) -> None:
    few = audit(train=2, held=0)
    rose = [change.model_copy(update={"change": 1.0}) for change in few.changes]
    assert agreement_figure(few.rows) is None
    write_audit_page(inputs(Audit(few.rows, few.texts, tuple(rose), few.foresight)), tmp_path)
    assert not re.search(r"\bnan\b", words_of(tmp_path / "audit.html", " "))


def test_text_of_data_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    found = audit(text=CANARY, mark=CANARY)
    write_audit_page(inputs(Audit(found.rows, found.texts), CANARY), tmp_path)
    page = obeys_no_text(tmp_path, "audit.html")
    assert any("window.canary=1" in words for words in page.words)


def test_every_figure_says_how_it_is_read() -> None:
    found = audit()
    for figure in (pull_figure(found), agreement_figure(found.rows), foreseen_figure(found)):
        check_figure(figure)
