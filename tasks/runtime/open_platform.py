"""Opens the platform of a flow's stages from the environment, and always closes it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO, Any

from dynolab.store import Store
from tasks.runtime.launch.devices import hide_other_devices
from tasks.runtime.stage import Platform
from tasks.runtime.system.secret_files import own_folder, signing_key
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.mlflow_pages import FAILED, SUMMARY, literal
from tasks.runtime.track.progress import (
    CLOSE_SECONDS,
    FLOW_RUN_TAG,
    PlainLines,
    Progress,
    ProgressArtifacts,
    RichLines,
    inside_prefect_run,
    is_pause,
    publish_links,
    run_tags,
    run_title,
)
from tasks.runtime.track.runs import STUDY_RUN_TAG, RunTracker, Status, left_behind
from tasks.runtime.track.tracking import Tracking

log = logging.getLogger(__name__)

LAST_SENDING_SECONDS = 20.0


def open_store(settings: Settings) -> Store:
    """Open the store that the settings name, with its signing key."""
    own_folder(settings.home)
    return Store(
        settings.store,
        cache=settings.cache,
        endpoint=settings.store_endpoint,
        key=partial(signing_key, settings.home),
        keep=settings.resume_states,
    )


def make_progress(stream: IO[str] | None = None) -> Progress:
    """Progress lines, rich on a terminal and plain elsewhere; in a Prefect run, artifacts too.

    `stream` defaults to standard error, so that standard output holds only results.
    """
    stream = stream or sys.stderr
    lines = RichLines(stream) if stream.isatty() else PlainLines(stream)
    return Progress(lines, ProgressArtifacts()) if inside_prefect_run() else Progress(lines)


def planning_platform() -> Platform:
    """A platform that only looks up results and computes nothing."""

    def no_tracking() -> Tracking:
        raise AssertionError("a plan computes nothing")

    settings = Settings.from_environment()
    return Platform(settings, open_store(settings), no_tracking, make_progress)


@contextmanager
def open_platform(
    *,
    study: str,
    project: str,
    tags: Mapping[str, str],
    params: Mapping[str, Any],
    settings_yaml: str = "",
    charts: bool = False,
) -> Iterator[Platform]:
    """The platform of one flow run.

    `tags`, `params` and `settings_yaml` describe its parent run in MLflow. `charts`: set up charts
    of the stages there, which trainings fill.

    The MLflow server is the one that the environment names, else the one that runs on this home,
    else one that starts with the first stage to compute something and ends with the flow.
    Runs that could not be sent completely stay in the home's outbox; the next command sends them,
    even if all its stages are cached.
    """
    settings = Settings.from_environment()
    hide_other_devices()
    with ExitStack() as services:
        platform = Platform(
            settings=settings,
            store=open_store(settings),
            open_tracking=lambda: _open_tracking(settings, project, services),
            progress=make_progress,
            open_parent_run=lambda tracking: _open_study(
                tracking, study, tags, params, settings_yaml, charts
            ),
        )
        try:
            yield platform
        finally:
            # Without work of its own, the flow still sends what dead processes left.
            if platform.has_worked or left_behind(settings.outbox):
                _close(platform, study, sys.exc_info()[1])


def _open_tracking(settings: Settings, project: str, services: ExitStack) -> Tracking:
    # Imported here: a flow whose stages are all cached needs no server.
    from tasks.runtime.servers.service import MLFLOW
    from tasks.runtime.servers.standing import use_services

    if settings.mlflow_tracking_uri is not None:
        return Tracking(settings.mlflow_tracking_uri, settings.outbox, experiment=project)
    server = services.enter_context(use_services(settings.home, [MLFLOW]))
    server.log_in()
    return Tracking(server.by_name[MLFLOW].url, settings.outbox, experiment=project)


def _open_study(
    tracking: Tracking,
    study: str,
    tags: Mapping[str, str],
    params: Mapping[str, Any],
    settings_yaml: str,
    charts: bool,
) -> RunTracker:
    prefect_tags = run_tags()
    # Retries and resumptions of a run in Prefect go on in its MLflow run.
    study_run = {STUDY_RUN_TAG: prefect_tags[FLOW_RUN_TAG]} if prefect_tags else {}
    tracker = tracking.start_run(
        run_title(study),
        tags={**tags, **prefect_tags, **study_run},
        params=params,
        settings_yaml=settings_yaml,
        resume_by=STUDY_RUN_TAG if study_run else None,
    )
    if charts:
        tracker.describe(trainings=())  # the runs under this one
    publish_links(SUMMARY, study, {}, tracker=tracker, charts=charts)
    return tracker


def _close(platform: Platform, study: str, error: BaseException | None) -> None:
    run = platform.parent_run
    if platform.has_worked and run is not None:
        # KILLED: by Ctrl-C or SIGTERM, which are no `Exception`.
        unfinished: Status = "FAILED" if isinstance(error, Exception) else "KILLED"
        if is_pause(error):
            unfinished = "SCHEDULED"
        run.finish("FINISHED" if error is None else unfinished, error)
        if run.record.error:
            charts = run.record.trainings is not None
            lines = [f"{FAILED} {literal(run.record.error)}"]
            publish_links(SUMMARY, study, {}, lines, run, charts=charts, seconds=CLOSE_SECONDS)
    unsent = platform.tracking.close(LAST_SENDING_SECONDS)
    if unsent:
        log.warning("%d runs could not be sent to MLflow; the next command sends them", unsent)
