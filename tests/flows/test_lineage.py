"""From a result back to the data."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console
from rich.tree import Tree

from dynolab.errors import ConfigError
from flows.commands import _description, show_lineage
from tasks.runtime.lineage import addressed, lineage
from tests.flows.analysed import Analysed


@pytest.fixture(scope="module")
def lab(analysed: Analysed) -> Analysed:
    return analysed


def test_a_training_leads_back_to_its_model_and_its_data(lab: Analysed) -> None:
    found = list(lineage(lab.platform.store, lab.sft))
    assert [(one.role, one.depth, one.result and one.result.stage) for one in found] == [
        ("", 0, "sft"),
        ("data", 1, "data"),
        ("model", 1, "base"),
        ("data", 2, "data"),
    ]
    assert found[1].sources["source"] == "world"
    assert {one.result.address for one in found if one.result} == {
        lab.sft.address,
        lab.base.address,
        lab.data.address,
    }


def test_it_is_printed_as_a_tree(lab: Analysed, monkeypatch: pytest.MonkeyPatch) -> None:
    home = lab.platform.settings.home
    monkeypatch.setenv("DYNOLAB_HOME", str(home))
    for name in ("DYNOLAB_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    said = StringIO()
    show_lineage(f"sft/{lab.sft.key[:12]}", Console(file=said, width=300))
    told = said.getvalue()
    for part in (lab.sft.address, lab.base.address, lab.data.address, "model: base", "torch 2"):
        assert part in told
    for reference in ("0" * 32, "models:/dynolab-builtin/1"):
        with pytest.raises(ConfigError, match="start the servers"):
            show_lineage(reference)


def test_what_a_manifest_says_is_shown_as_it_is(lab: Analysed) -> None:
    (one, *_) = lineage(lab.platform.store, lab.sft)
    assert one.manifest is not None
    manifest = one.manifest.model_copy(update={"git_revision": "[/odd]"})
    said = StringIO()
    odd = replace(one, role="[red]", manifest=manifest)
    Console(file=said, width=300).print(Tree(_description(odd)))
    assert "[red]: sft" in said.getvalue() and "code [/odd]," in said.getvalue()


def test_what_the_store_no_longer_holds_is_told(lab: Analysed) -> None:
    store = lab.platform.store
    gone = lab.sft.model_copy()
    place = store.place("data", lab.data.key)
    marker = f"{place.path}/COMMITTED"
    content = store.files.read(marker)
    store.files.remove(marker)
    try:
        found = list(lineage(store, gone))
    finally:
        store.files.create(marker, content)
    assert [one.result is None for one in found] == [False, True, False, True]
    assert found[1].digest == lab.data.digest


def test_what_is_no_result_is_refused(lab: Analysed) -> None:
    for reference in ("nothing", "sft/ffff", "models:/a", "models:/a/newest"):
        with pytest.raises(ConfigError, match=f"address = '{reference}'"):
            addressed(lab.platform.store, reference, None)
