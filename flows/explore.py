"""The explorer: opens a study's results and serves a page on them, behind the home's login."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from dynolab import __version__
from dynolab.data.batches import CHOSEN, REJECTED
from dynolab.data.encode import EncodedExample
from dynolab.data.rows import Example, ProbeRow, read_rows
from dynolab.errors import ConfigError, check_installed
from dynolab.explorer.study import Study
from dynolab.explorer.training import Training
from dynolab.forces.map.analysis import recorded_examples
from dynolab.likelihood.token_logps import ResponseLogits
from dynolab.objectives.registry import ObjectiveConfig
from dynolab.results.ledger_reader import read_ledger
from dynolab.store import Store
from dynolab.training.reference import score_reference
from dynolab.training.step_batch import RecordedExample
from dynolab.training.step_record import RecordCache
from flows.checkpoints import inputs_of
from flows.flow import existing_result
from tasks.runtime.open_platform import planning_platform
from tasks.runtime.system.processes import listening_socket
from tasks.runtime.system.secret_files import login_token
from tasks.runtime.system.settings import Settings
from tasks.runtime.work import StageResult
from tasks.shared.policies import ADAPTER, load_encoder, load_model, load_policy
from tasks.training import RECORDS

RESULT = "RESULT"
NEWEST = "report"
"""The stage that ends a study; alone, it names the newest result."""

_OBJECTIVE: TypeAdapter[ObjectiveConfig] = TypeAdapter(ObjectiveConfig)

TRAININGS = ("sft", "preference")
REFERENCE_BATCH = 8
KEPT = "explorer"
"""Folder of the home's cache for what the explorer has computed."""


def start(references: Sequence[str], port: int, announce: Callable[[str], None]) -> None:
    """Opens a study, others beside it, and serves their page until Ctrl-C or SIGTERM.

    **Raises** `ConfigError` for a result that is no study, or is no longer whole, for studies of
    different data, for a port that is taken, and without the library of the page.
    """
    check_installed("explore", "dash", "explore")
    home = Settings.from_environment().home
    with listener(port) as server:
        study, *others = map(open_study, references)
        for second in others:
            study = study.beside(second)
        from dynolab.explorer.page.app import application

        page = application(study)
        host, chosen = server.getsockname()
        announce(f"explorer  http://{host}:{chosen}/?token={login_token(home)}")
        announce(f"study     {study.name}, {study.result}; Ctrl-C ends it")
        serve(page, server, login_token(home))
        for training in study.trainings.values():
            training.background.end()


def listener(port: int) -> socket.socket:
    """A socket that only this machine reaches."""
    try:
        return listening_socket(port)
    except OSError as error:
        raise ConfigError(
            "--port", port, "is taken; give another with --port, or 0 for any that is free"
        ) from error


def serve(application: Any, server: socket.socket, token: str) -> None:
    """Serves an ASGI application to this user's logged-in programs, as the other servers do."""
    import uvicorn

    from tasks.runtime.servers.guard import Guard
    from tasks.runtime.servers.serve import allowed_hosts

    config = uvicorn.Config(
        Guard(application, token, allowed_hosts(), public=()),
        access_log=False,
        log_level="error",
        timeout_graceful_shutdown=1,
    )
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[server])


def open_study(reference: str) -> Study:
    """The study that a reference names: `report/<key>`, or the newest one.

    **Raises** `ConfigError` for a result of another stage, and for one whose trainings or data are
    no longer in the store.
    """
    settings, platform = Settings.from_environment(), planning_platform()
    store = platform.store
    try:
        result = existing_result(store, RESULT, reference)
    except ConfigError as error:
        if reference != NEWEST:
            raise
        raise ConfigError(
            "DYNOLAB_HOME",
            str(settings.home),
            "holds no study's result; run one first: dynolab study",
        ) from error
    if result.stage != NEWEST:
        raise ConfigError(
            RESULT, reference, f"is a result of stage {result.stage}; give a study's, report/<key>"
        )
    inputs = inputs_of(result, platform)
    folders = {
        name: _folder(store, inputs, name) for name in ("data", *TRAININGS) if name in inputs
    }
    if inputs.get("ledger"):
        folders["ledger"] = _folder(store, inputs, "ledger")
    start_of = {"sft": "base", "preference": "sft" if "sft" in inputs else "base"}
    pairs = {row.id: row for row in read_rows(folders["data"] / "train.jsonl", Example)}
    watched = tuple(read_rows(folders["data"] / "probes.jsonl", ProbeRow))
    trainings = {
        name: _training(store, name, folders, watched, inputs, start_of[name])
        for name in TRAININGS
        if name in folders
    }
    if not any(training.answers for training in trainings.values()):
        raise ConfigError(
            RESULT,
            reference,
            "its trainings watched no answers; set probe_every and run the study again",
        )
    data = inputs["data"]
    assert data is not None
    name = store.manifest(result.address, result.digest).config["name"]
    return Study(str(name), result.short, trainings, pairs, data.short)


def _training(
    store: Store,
    name: str,
    folders: Mapping[str, Path],
    watched: Sequence[ProbeRow],
    inputs: Mapping[str, StageResult | None],
    start: str,
) -> Training:

    folder, result = folders[name], inputs[name]
    assert result is not None
    objective = store.manifest(result.address, result.digest).config["objective"]
    cache = Settings.from_environment().cache
    adapter = folder / ADAPTER
    account = name == "preference" and "ledger" in folders
    return Training(
        name=name,
        result=result.short,
        objective=_OBJECTIVE.validate_python(objective),
        folder=folder,
        watched=watched if (folder / "probes.jsonl").exists() else (),
        load=lambda: (
            load_policy(folder / "model", adapter if adapter.exists() else None),
            load_encoder(folder / "model"),
        ),
        score=partial(_scored, lambda: _folder(store, inputs, start) / "model"),
        ledger=read_ledger(folders["ledger"], folders["data"]) if account else None,
        records=RecordCache(cache / RECORDS),
        cache=cache / KEPT / __version__,
    )


def _scored(
    reference: Callable[[], Path], pairs: Sequence[EncodedExample]
) -> list[RecordedExample]:
    """Pairs with the log-probabilities of the model that the training started from."""

    model, tokenizer = load_model(reference())
    sides = [CHOSEN] if pairs[0].rejected is None else [CHOSEN, REJECTED]
    scores = score_reference(
        ResponseLogits(model), pairs, sides, pad_id=tokenizer.pad_token_id, batch=REFERENCE_BATCH
    )
    return recorded_examples(pairs, scores)


def _folder(store: Store, inputs: Mapping[str, StageResult | None], name: str) -> Path:
    result = inputs.get(name)
    if result is None:
        raise ConfigError(
            RESULT, NEWEST, f"its input {name} is no longer in the store; run the study again"
        )
    return store.folder(result.address, result.digest)
