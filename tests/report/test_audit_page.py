"""The page of an audit holds its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynolab.report.audit import write_audit_page
from dynolab.report.inputs.study import Audit, AuditPageInputs
from dynolab.report.style import number
from tests.report.audits import audit
from tests.report.parsed import check_figures, words_of


def written(found: Audit, folder: Path, name: str = "pairs") -> str:
    write_audit_page(AuditPageInputs("dpo", found, name=name, settings=name), folder)
    return (folder / "audit.html").read_text()


@pytest.mark.parametrize("trained", [True, False])
def test_the_worst_pairs_come_first_with_their_texts(trained: bool, tmp_path: Path) -> None:
    found = audit(trained=trained)
    page = written(found, tmp_path)
    assert ('id="foresight"' in page) == ('id="foreseen"' in page) == trained
    assert check_figures(tmp_path, "audit.html") >= 1
    own = sorted((row for row in found.rows if row.split == "train"), key=lambda row: row.force)
    section = page.split('<section id="worst-force">')[1].split("</section>")[0]
    places = [section.index(row.pair_id) for row in own[:10]]
    assert places == sorted(places) and own[10].pair_id not in section
    assert found.texts["train", own[0].pair_id].chosen.strip() in section


def test_the_band_is_counted_and_held_against_rankings_without_a_gradient(tmp_path: Path) -> None:
    found = audit()
    page = written(found, tmp_path)
    section = page.split('<section id="band">')[1].split("</section>")[0]
    below = [row for row in found.trained if row.band == "below"]
    fell = sum(found.moved["train", row.pair_id] < 0 for row in below)
    assert f">{fell} of {len(below)}<" in section
    (force,) = [row for row in found.foresight if (row.ranking, row.split) == ("force", "train")]
    assert f"was right for {number(100 * force.right, 2)} % of 24" in section
    assert found.bands.keys() == {row.pair_id for row in found.trained}
    older = tuple(row.model_copy(update={"band": None}) for row in found.rows)
    assert 'id="band"' not in written(Audit(older, found.texts), tmp_path)


def test_pairs_of_several_sources_are_summed_by_source(tmp_path: Path) -> None:
    found = audit()
    assert 'id="sources"' not in written(found, tmp_path)
    sources = ("news", "tales", "tales")
    rows = tuple(
        row.model_copy(update={"pair_id": f"{sources[number % 3]}/{row.pair_id}"})
        for number, row in enumerate(found.rows)
    )
    texts = {
        (row.split, row.pair_id): found.texts[row.split, row.pair_id.partition("/")[2]]
        for row in rows
    }
    page = written(Audit(rows, texts, (), found.foresight), tmp_path)
    section = page.split('<section id="sources">')[1].split("</section>")[0]
    own = [row for row in rows if row.split == "train"]
    for source in ("news", "tales"):
        of_source = [row for row in own if row.pair_id.startswith(source)]
        cells = section.split(f">{source}<")[1].split("</tr>")[0]
        part = sum(row.on_all for row in of_source) / len(own)
        assert f">{len(of_source)}<" in cells and f">{number(part, sign=True)}<" in cells


def test_few_pairs_and_no_falls_leave_gaps_and_no_errors(tmp_path: Path) -> None:
    few = audit(train=2, held=0)
    rose = [change.model_copy(update={"change": 1.0}) for change in few.changes]
    written(Audit(few.rows, few.texts, tuple(rose), few.foresight), tmp_path)
    assert "nan" not in words_of(tmp_path / "audit.html", " ").split()
