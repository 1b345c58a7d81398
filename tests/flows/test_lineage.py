"""From a result, or a model that MLflow lists, back to the data."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.tree import Tree

from dynolab.errors import ConfigError
from flows.shown_lineage import _description, show_lineage
from tasks.runtime.lineage import addressed, lineage
from tests.flows.analysed import Analysed
from tests.flows.in_process import short
from tests.flows.lab import Lab


def test_a_training_leads_back_to_its_model_and_its_data(analysed: Analysed) -> None:
    ancestors = list(lineage(analysed.platform.store, analysed.sft))
    assert [
        (ancestor.role, ancestor.depth, ancestor.result and ancestor.result.address)
        for ancestor in ancestors
    ] == [
        ("", 0, analysed.sft.address),
        ("data", 1, analysed.data.address),
        ("model", 1, analysed.base.address),
        ("data", 2, analysed.data.address),
    ]
    assert ancestors[1].sources["source"] == "world"


def printed(reference: str) -> str:
    output = StringIO()
    show_lineage(reference, Console(file=output, width=300))
    return output.getvalue()


def test_it_is_printed_as_a_tree(
    analysed: Analysed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = analysed.platform.settings.home
    monkeypatch.setenv("DYNOLAB_HOME", str(home))
    for name in ("DYNOLAB_STORE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    tree = printed(short(analysed.sft))
    addresses = (analysed.sft.address, analysed.base.address, analysed.data.address)
    for part in (*addresses, "model: base", "torch 2"):
        assert part in tree
    show_lineage(short(analysed.sft), Console(file=StringIO()), as_json=True)
    results = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert [(each["input"], each["address"]) for each in results[:2]] == [
        (None, analysed.sft.address),
        ("data", analysed.data.address),
    ]
    for reference in ("0" * 32, "models:/dynolab-builtin/1"):
        with pytest.raises(ConfigError, match="start the servers"):
            show_lineage(reference)


def test_what_a_manifest_says_is_shown_as_it_is(analysed: Analysed) -> None:
    (training, *_) = lineage(analysed.platform.store, analysed.sft)
    assert training.manifest is not None
    manifest = training.manifest.model_copy(update={"git_revision": "[/odd]"})
    output = StringIO()
    odd = replace(training, role="[red]", manifest=manifest)
    Console(file=output, width=300).print(Tree(_description(odd)))
    assert "[red]: sft" in output.getvalue() and "code [/odd]," in output.getvalue()


def test_what_the_store_no_longer_holds_is_told(analysed: Analysed) -> None:
    store = analysed.platform.store
    # Other settings may have led to the same rows under another key.
    places = [store.place("data", key) for key in store.files.children("stages/data")]
    markers = {f"{place.path}/COMMITTED": place.committed() for place in places}
    held = {
        marker: store.files.read(marker)
        for marker, result in markers.items()
        if result is not None and result.manifest.digest == analysed.data.digest
    }
    for marker in held:
        store.files.remove(marker)
    try:
        ancestors = list(lineage(store, analysed.sft))
    finally:
        for marker, content in held.items():
            store.files.create(marker, content)
    assert [ancestor.result is None for ancestor in ancestors] == [False, True, False, True]
    assert ancestors[1].digest == analysed.data.digest


def test_what_is_no_result_is_refused(analysed: Analysed) -> None:
    for reference in ("nothing", "sft/ffff", "models:/a", "models:/a/newest"):
        with pytest.raises(ConfigError, match=f"address = '{reference}'"):
            addressed(analysed.platform.store, reference, None)


@pytest.mark.services
@pytest.mark.ranks
def test_a_studys_model_is_listed_once_and_leads_back_to_its_data(
    undisturbed: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    trained = undisturbed.manifest("preference")
    client: Any = MlflowClient(undisturbed.mlflow)
    (version,) = client.search_model_versions("name = 'undisturbed-small'")
    assert version.tags["stage_key"] == trained["key"]
    assert version.run_id == trained["mlflow_run_id"]
    assert f"/stages/preference/{trained['key']}/attempt-" in version.source

    monkeypatch.setenv("DYNOLAB_HOME", str(undisturbed.home))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, undisturbed.environment[name])
    monkeypatch.delenv("DYNOLAB_STORE", raising=False)
    tree = printed(f"models:/undisturbed-small/{version.version}").splitlines()
    words = [line.strip("│├└─ ").partition(" ")[0] for line in tree]
    assert words[0] == "preference" and {"data:", "model:"} <= set(words)
