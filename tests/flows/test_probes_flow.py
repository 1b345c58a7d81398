"""The building of probe sets as a flow, and studies that watch what it built."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dynolab.data.rows import ProbeRow
from dynolab.errors import ConfigError
from flows.flow import Plan
from flows.parameters.validation import validated
from flows.probes import FLOW, ProbesParameters
from flows.study.parameters import StudyParameters, resolved
from flows.study.steps import study_steps
from tasks.runtime.work import StageResult
from tests.endpoint.server import KEY, ChatServer, Said, Seen, chat_server, good, trouble
from tests.flows.analysed import Analysed
from tests.flows.in_process import short

PATIENT = {"model": "m", "requests_per_minute": 60_000, "attempts": 3, "timeout_seconds": 20}
SMALL: dict[str, Any] = {
    "name": "small",
    "data": {"world": {"entities": 20, "train_pairs": 12, "heldout_pairs": 6, "corpus_rows": 64}},
    "base": {"training": {"engine": {"kind": "plain", "ranks": 1}, "steps": 2, "batch_size": 4}},
    "probe_set": {
        "kinds": [
            "chosen",
            "rejected",
            "irr_test",
            "chosen_initial",
            "chosen_gptsemantic",
            "irr_hum",
        ],
        "taken": ["irr_hum"],
        "pairs": 4,
        "max_new_tokens": 4,
        "writer": PATIENT,
    },
}
ONE_BY_ONE = SMALL["probe_set"] | {"writer": PATIENT | {"concurrency": 1}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    with chat_server() as started:
        started.answer = write
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("OPENAI_BASE_URL", started.address)
        yield started


def write(seen: Seen) -> Said:
    return good(f"<answer>other words for {seen.text.split()[-2]}</answer>")


def planned(lab: Analysed, **changes: Any) -> Plan:
    return lab.plan(FLOW, SMALL | changes)


def run(lab: Analysed, **changes: Any) -> dict[str, StageResult]:
    return lab.run_plan(planned(lab, **changes))


def everything_written(analysed: Analysed) -> bytes:
    files = [file for file in analysed.platform.settings.home.rglob("*") if file.is_file()]
    assert any("answers" in file.parts for file in files)
    return b"".join(file.read_bytes() for file in files)


def test_a_probe_set_is_data_that_other_stages_read(analysed: Analysed, server: ChatServer) -> None:
    results = run(analysed)
    built, data = results["probe-set"], results["data"]
    rows = analysed.rows(built, "probes.jsonl", ProbeRow)
    assert Counter(row.kind for row in rows) == dict.fromkeys(SMALL["probe_set"]["kinds"], 8)
    assert analysed.text(built, "missing.jsonl") == ""
    for name in ("train.jsonl", "heldout.jsonl"):
        assert analysed.text(built, name) == analysed.text(data, name)
    made_by = {row.kind: row.made_by for row in rows}
    assert f"by {short(results['base'])} at temperature 1" in made_by["chosen_initial"]
    assert made_by["irr_hum"] == "a tale of the base corpus's grammar"
    assert (built.metrics["probes/rows"], built.metrics["writer/answered"]) == (48, 8)
    assert analysed.to_run(planned(analysed)) == set()
    assert KEY.encode() not in everything_written(analysed)


def test_patience_does_not_change_the_key_and_the_model_does(
    analysed: Analysed, server: ChatServer
) -> None:
    run(analysed)
    asked = len(server.seen)

    def states(**writer: Any) -> set[str]:
        changed = SMALL["probe_set"] | {"writer": PATIENT | writer}
        return set(analysed.states(planned(analysed, probe_set=changed)).values())

    assert states(concurrency=1, requests_per_minute=1, timeout_seconds=1) == {"cached"}
    assert states(model="other") == states(temperature=0) == {"cached", "to run"}
    assert len(server.seen) == asked


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "on another machine"])
def test_a_build_that_ended_goes_on_where_it_stopped(
    elsewhere: bool, analysed: Analysed, server: ChatServer
) -> None:
    seed = 7 if elsewhere else 1
    server.answer = lambda seen: write(seen) if seen.place < 3 else trouble(401, KEY)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY = '\\(not shown\\)'"):
        run(analysed, seed=seed, probe_set=ONE_BY_ONE)
    server.answer = write
    if elsewhere:
        answers = analysed.platform.settings.cache / "answers"
        answers.rename(answers.with_name("lost-answers"))
    done = run(analysed, seed=seed, probe_set=ONE_BY_ONE)["probe-set"]
    assert (done.metrics["writer/kept"], done.metrics["writer/requests"]) == (3, 5)
    assert analysed.platform.store.place(done.stage, done.key).newest_resume() is None
    assert KEY.encode() not in everything_written(analysed)


def test_a_study_builds_its_own_set(analysed: Analysed, server: ChatServer) -> None:
    parts = {name: SMALL[name] for name in ("data", "base", "probe_set")}
    steps = study_steps(resolved(validated(StudyParameters, parts | {"seed": 6})))
    assert [step.name for step in steps][:4] == ["rows", "base", "data", "sft"]
    assert all(step.inputs.get("data") != "rows" for step in steps[3:])
    data = analysed.run_steps(steps[:3])["data"]
    alone = planned(analysed, seed=6).steps[-1]
    assert data.stage == alone.stage.name and steps[2].config == alone.config
    rows = analysed.rows(data, "probes.jsonl", ProbeRow)
    assert {row.kind for row in rows} == set(SMALL["probe_set"]["kinds"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": None}, "base = None: chosen_initial needs a policy"),
        ({"data": {"source": "file", "path": "x.jsonl"}}, "base.source = 'builtin'"),
        ({"probe_set": {"kinds": ["chosen", "irr_hum"]}}, "probe_set.writer = None: irr_hum needs"),
        ({"probe_set": {"kinds": ["chosen", "gpt"]}}, "probe_set.kinds.1 = 'gpt'"),
        ({"probe_set": {"writer": {"model": "m", "api_key": KEY}}}, "probe_set.writer.api_key"),
    ],
)
def test_what_cannot_be_built_is_refused_first(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        validated(ProbesParameters, SMALL | changes)
