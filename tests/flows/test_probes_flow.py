"""The building of probe sets as a flow, and studies that watch what it built."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynolab.data.probes.kinds import KINDS
from dynolab.data.probes.missing import Missing
from dynolab.data.rows import ProbeRow, read_rows
from dynolab.errors import ConfigError, EndpointFailed
from flows.parameters import load_parameters, validated
from flows.probes import ProbesParameters, probes_steps, resolved_probes
from flows.study import StudyParameters, resolved, study_steps
from tasks.data import DATA
from tasks.runtime.pipeline import plan
from tasks.runtime.work import StageResult
from tests.endpoint.server import KEY, ChatServer, Said, Seen, chat_server, good, html, trouble
from tests.flows.analysed import Analysed
from tests.flows.lab import ROOT, Lab, ended, until

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


def parameters(**changes: Any) -> ProbesParameters:
    return resolved_probes(validated(ProbesParameters, SMALL | changes))


def run(analysed: Analysed, known: ProbesParameters) -> dict[str, StageResult]:
    results: dict[str, StageResult] = {}
    for step in probes_steps(known):
        results[step.name] = analysed.run(
            step.stage, step.config, step.name, **step.sources(results)
        )
    return results


def everything_written(analysed: Analysed) -> bytes:
    files = [file for file in analysed.platform.settings.home.rglob("*") if file.is_file()]
    assert any("answers" in file.parts for file in files)
    return b"".join(file.read_bytes() for file in files)


def test_a_probe_set_is_data_that_other_stages_read(analysed: Analysed, server: ChatServer) -> None:
    results = run(analysed, parameters())
    folder, data = (analysed.folder(results[name]) for name in ("probe-set", "data"))
    rows = list(read_rows(folder / "probes.jsonl", ProbeRow))
    assert Counter(row.kind for row in rows) == dict.fromkeys(SMALL["probe_set"]["kinds"], 8)
    assert list(read_rows(folder / "missing.jsonl", Missing)) == []
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (folder / name).read_bytes() == (data / name).read_bytes()
    made_by = {row.kind: row.made_by for row in rows}
    base = results["base"]
    assert f"by base/{base.key[:12]} at temperature 1" in made_by["chosen_initial"]
    assert made_by["irr_hum"] == "a tale of the base corpus's grammar"
    metrics = results["probe-set"].metrics
    assert metrics["probes/rows"] == 48 and metrics["writer/answered"] == 8
    assert {one.state for one in plan(probes_steps(parameters()), analysed.platform)} == {"cached"}
    assert KEY.encode() not in everything_written(analysed)


def test_patience_does_not_change_the_key_and_the_model_does(
    analysed: Analysed, server: ChatServer
) -> None:
    run(analysed, parameters())
    asked = len(server.seen)

    def states(**writer: Any) -> set[str]:
        changed = SMALL["probe_set"] | {"writer": PATIENT | writer}
        steps = probes_steps(parameters(probe_set=changed))
        return {one.state for one in plan(steps, analysed.platform)}

    assert states(concurrency=1, requests_per_minute=1, timeout_seconds=1) == {"cached"}
    assert states(model="other") == states(temperature=0) == {"cached", "to run"}
    assert len(server.seen) == asked


def test_a_build_that_ended_goes_on_where_it_stopped(
    analysed: Analysed, server: ChatServer
) -> None:
    known = parameters(seed=1, probe_set=ONE_BY_ONE)
    server.answer = lambda seen: write(seen) if seen.place < 3 else trouble(401, KEY)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY = '\\(not shown\\)'"):
        run(analysed, known)
    server.answer = write
    done = run(analysed, known)["probe-set"]
    assert (done.metrics["writer/kept"], done.metrics["writer/requests"]) == (3, 5)
    assert KEY.encode() not in everything_written(analysed)


def test_a_build_that_ended_goes_on_on_another_machine(
    analysed: Analysed, server: ChatServer
) -> None:
    known = parameters(seed=7, probe_set=ONE_BY_ONE)
    server.answer = lambda seen: write(seen) if seen.place < 3 else trouble(401)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        run(analysed, known)
    server.answer = write
    answers = analysed.platform.settings.cache / "answers"
    answers.rename(answers.with_name("lost-answers"))
    done = run(analysed, known)["probe-set"]
    assert (done.metrics["writer/kept"], done.metrics["writer/requests"]) == (3, 5)
    left = analysed.platform.store.place(done.stage, done.key).newest_resume()
    assert left is None


def test_troubles_are_told_and_what_stays_missing_is_listed(
    analysed: Analysed, server: ChatServer
) -> None:
    def moody(seen: Seen) -> Said:
        first = seen.text == server.texts[0]
        bad = (trouble(429, Retry_After="0"), html(), good(""))
        return bad[seen.number] if first else write(seen)

    server.answer = moody
    changed = SMALL["probe_set"] | {"most_missing": 0.2, "writer": PATIENT | {"concurrency": 1}}
    done = run(analysed, parameters(seed=2, probe_set=changed))["probe-set"]
    told = {
        name: done.metrics[f"writer/{name}"]
        for name in ("rate_limited", "not_json", "empty", "given_up", "answered")
    }
    assert told == {"rate_limited": 1, "not_json": 1, "empty": 1, "given_up": 1, "answered": 7}
    (missing,) = read_rows(analysed.folder(done) / "missing.jsonl", Missing)
    assert missing.kind == "chosen_gptsemantic" and missing.reason == "the answer is empty"
    assert done.metrics["probes/missing"] == 1 and done.metrics["probes/rows"] == 47
    logged = analysed.tracking.runs[-1].artifacts["tables/missing.json"]
    assert missing.pair_id in str(logged)


def test_an_endpoint_that_is_gone_commits_nothing(analysed: Analysed, server: ChatServer) -> None:
    server.answer = lambda seen: html(503)
    many = SMALL["probe_set"] | {"pairs": 6, "writer": PATIENT | {"attempts": 1}}
    with pytest.raises(EndpointFailed, match="its answers so far are kept"):
        run(analysed, parameters(seed=3, probe_set=many))


def test_a_study_watches_a_set_that_was_built(analysed: Analysed, server: ChatServer) -> None:
    built = run(analysed, parameters())["probe-set"]
    file = analysed.folder(built) / "probes.jsonl"
    study = resolved(validated(StudyParameters, {"data": SMALL["data"] | {"probes": str(file)}}))
    data = analysed.run(DATA, study.data)
    assert (analysed.folder(data) / "probes.jsonl").read_bytes() == file.read_bytes()
    other = study.data.model_copy(update={"world": study.data.world.model_copy(update={"seed": 4})})
    with pytest.raises(ConfigError, match="with the same data settings and seed"):
        analysed.run(DATA, other)


def test_a_study_builds_its_own_set(analysed: Analysed, server: ChatServer) -> None:
    parts = {name: SMALL[name] for name in ("data", "base", "probe_set")}
    steps = study_steps(resolved(validated(StudyParameters, parts | {"seed": 6})))
    assert [step.name for step in steps][:4] == ["rows", "base", "data", "sft"]
    assert all(step.inputs.get("data") != "rows" for step in steps[3:])
    results: dict[str, StageResult] = {}
    for step in steps[:3]:
        results[step.name] = analysed.run(
            step.stage, step.config, step.name, **step.sources(results)
        )
    alone = probes_steps(parameters(seed=6))[-1]
    assert results["data"].stage == alone.stage.name and steps[2].config == alone.config
    rows = list(read_rows(analysed.folder(results["data"]) / "probes.jsonl", ProbeRow))
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
    with pytest.raises(ConfigError) as raised:
        validated(ProbesParameters, SMALL | changes)
    assert message in str(raised.value)


def test_a_study_names_the_part_of_a_set_that_cannot_be_built() -> None:
    with pytest.raises(ConfigError, match=r"probe_set\.writer = None: irr_hum needs one"):
        validated(StudyParameters, {"probe_set": {"kinds": ["chosen", "irr_hum"]}})


def test_without_a_key_the_stage_names_the_variable(
    analysed: Analysed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        run(analysed, parameters(seed=5))


def test_the_files_of_the_repository_are_plans() -> None:
    studies = ROOT / "deploy/studies"
    builtin = load_parameters(ProbesParameters, studies / "probes_builtin.yaml")
    assert [step.name for step in probes_steps(builtin)] == ["data", "base", "probe-set"]
    assert not builtin.probe_set.writer_kinds
    hub = load_parameters(ProbesParameters, studies / "probes_hh.yaml")
    assert set(hub.probe_set.kinds) == set(KINDS)
    study = load_parameters(StudyParameters, studies / "hh_pythia410m.yaml")
    assert (hub.data, hub.seed) == (study.data, study.seed)


@pytest.mark.services
def test_a_killed_command_goes_on_and_its_key_stands_nowhere(
    tmp_path: Path, servers: dict[str, str], server: ChatServer
) -> None:
    file = tmp_path / "probes.yaml"
    file.write_text(
        yaml.safe_dump(
            SMALL
            | {
                "base": None,
                "probe_set": SMALL["probe_set"]
                | {"kinds": ["chosen", "irr_test", "chosen_gptsemantic"], "taken": []},
            }
        )
    )
    lab = Lab(tmp_path / "lab", **servers)
    server.answer = lambda seen: write(seen) if seen.place < 3 else None
    process = lab.start(config=file, flow="probes")
    until(lambda: len(server.seen) > 4 and list(lab.home.rglob("answers/*/*.json")))
    os.killpg(process.pid, signal.SIGKILL)
    ended(process)
    kept = len(list(lab.home.rglob("answers/*/*.json")))
    assert 0 < kept <= 3
    asked, server.answer = len(server.seen), write
    process = lab.start(config=file, flow="probes")
    said, complained = ended(process)
    assert process.returncode == 0, said + complained
    assert len(server.seen) - asked == 8 - kept
    assert lab.study(config=file, flow="probes")["probe-set"] == "cached"
    built = lab.home / "reports" / "small.jsonl"
    assert Counter(json.loads(line)["kind"] for line in built.read_text().splitlines()) == {
        "chosen": 8,
        "irr_test": 8,
        "chosen_gptsemantic": 8,
    }
    assert KEY not in said + complained
    for path in lab.folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path
