"""How any stage runs: key, cache, claim, work, commit."""

from __future__ import annotations

import errno
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic
from uuid import uuid4

from dynolab.errors import ConfigError, DynolabError, Pruned, StoreError
from dynolab.likelihood.checked import checks_kept
from dynolab.store import Claim, Committed, Manifest, Place, Store, git_revision
from tasks.runtime.keys import canonical, stage_key
from tasks.runtime.system.scratch import scratch_folder
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.prefect_progress import link_mlflow_run, run_tags
from tasks.runtime.work import Config, StageResult, Work

if TYPE_CHECKING:
    from tasks.runtime.track.progress import Progress
    from tasks.runtime.track.tracking import RunTracker, Status, Tracking

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RUN_CREATION_SECONDS = 2.0
ADDRESS_TAG, DIGEST_TAG = "store.address", "store.digest"
COMMIT_PAUSES = (5.0, 30.0, 120.0)  # seconds


@dataclass(frozen=True)
class Stage(Generic[Config]):
    """A step of a study: its name, its meaning's version and what it does.

    `body` returns the few numbers of the result; `version` is raised when its meaning changes;
    `operational` are the dotted config fields that do not change the result.
    """

    name: str
    version: int
    body: Callable[[Work[Config]], dict[str, float]]
    operational: frozenset[str] = field(default=frozenset())


@dataclass
class Platform:
    """What stages run on, once per process.

    Tracking and the study's parent run are opened by the first stage that has work to do: a study
    that is wholly cached needs no MLflow and leaves no trace there.
    """

    settings: Settings
    store: Store
    open_tracking: Callable[[], Tracking]
    progress: Callable[[], Progress]
    open_study: Callable[[Tracking], RunTracker] | None = None

    @cached_property
    def tracking(self) -> Tracking:
        """The process's one connection to MLflow."""
        return self.open_tracking()

    @cached_property
    def study(self) -> RunTracker | None:
        """Parent of the stages' runs."""
        return self.open_study(self.tracking) if self.open_study else None

    @property
    def has_worked(self) -> bool:
        """Whether any stage had work to do, so that there is tracking to close."""
        return "tracking" in vars(self)


def plan_key(stage: Stage[Config], config: Config, inputs: Mapping[str, StageResult]) -> str:
    """The stage key, known before anything runs."""
    digests = {name: source.digest for name, source in inputs.items()}
    return stage_key(stage.name, stage.version, config, stage.operational, digests)


def lookup(stage: Stage[Config], key: str, platform: Platform) -> StageResult | None:
    """The committed result under a key, if there is one.

    Raises ConfigError where the store cannot be asked because a setting is wrong.
    """
    place = platform.store.place(stage.name, key)
    try:
        committed = place.committed()
    except StoreError:
        platform.store.check_writable()  # says which setting is wrong, if one is
        raise
    return StageResult.of(place, committed, cached=True) if committed else None


def run_stage(
    stage: Stage[Config],
    config: Config,
    inputs: Mapping[str, StageResult],
    platform: Platform,
    *,
    name: str | None = None,
    fresh: bool = False,
) -> StageResult:
    """Give the stage's result: the committed one, another run's, or computed here.

    `name` is what people read in MLflow and in the progress, where a study runs one stage several
    times; by default the stage's. `fresh` computes again whatever is committed, from the start,
    and replaces it.

    Raises whatever the body raises, with its logs kept in the store; ConfigError before any work
    where the store cannot be written.
    """
    key = plan_key(stage, config, inputs)
    before = lookup(stage, key, platform)
    if before is not None and not fresh:
        platform.progress().cached(name or stage.name, before.address)
        return before

    def finished_meanwhile() -> StageResult | None:
        now = lookup(stage, key, platform)
        return now if now and (before is None or now.address != before.address) else None

    platform.store.check_writable()
    place = platform.store.place(stage.name, key)
    with place.claim() as claim:
        result = _wait_for(claim, finished_meanwhile, stage.name) or finished_meanwhile()
        if result is not None:
            log.info("stage %s: another run computed %s", stage.name, result.address)
            return result
        if fresh:
            place.clear_resume()
        return _compute(stage, name or stage.name, config, inputs, platform, place, fresh=fresh)


def _wait_for(
    claim: Claim, finished: Callable[[], StageResult | None], stage: str
) -> StageResult | None:
    """Return once the claim is held (None), or another run has committed (its result)."""
    announced = ""
    while not claim.try_acquire():
        if (result := finished()) is not None:
            return result
        holder = claim.holder()
        if holder and holder != announced:
            log.info("stage %s: waiting for %s, which computes it", stage, holder)
            announced = holder
        time.sleep(POLL_SECONDS)
    return None


def _compute(
    stage: Stage[Config],
    name: str,
    config: Config,
    inputs: Mapping[str, StageResult],
    platform: Platform,
    place: Place,
    *,
    fresh: bool,
) -> StageResult:
    attempt = uuid4().hex
    folder = f"{stage.name}-{place.key[:12]}-{attempt}"
    tracker = platform.tracking.start_run(
        name,
        parent=platform.study,
        tags=_tags(stage, place.key, inputs) | run_tags(),
        params=canonical(config),
        resume_key=None if fresh else place.key,
    )
    link_mlflow_run(tracker, name)
    status: Status = "FAILED"
    try:
        with (
            _room_asked_for(platform.settings.home),
            scratch_folder(platform.settings.scratch, folder) as scratch,
        ):
            work = Work(
                name,
                config,
                inputs,
                version=stage.version,
                scratch=scratch,
                cache=platform.settings.cache,
                store=platform.store,
                place=place,
                tracker=tracker,
                progress=platform.progress(),
            )
            try:
                with checks_kept() as checks:
                    metrics = stage.body(work)
            except BaseException as error:
                failed = isinstance(error, Exception) and not isinstance(error, Pruned)
                status = "FAILED" if failed else "KILLED"
                with suppress(OSError):  # the disk may be what failed
                    (work.logs / "error.txt").write_text(traceback.format_exc())
                raise
            finally:
                place.upload_logs(attempt, work.logs)
            tracker.wait_created(RUN_CREATION_SECONDS)
            done = _commit(place, work.output, work.manifest(metrics, checks), replace=fresh)
            _forget_resume(place)
            result = StageResult.of(place, done, cached=False)
            log.info("%s is committed at %s", name, result.address)
            _report(tracker, result, done.manifest, scratch)
            status = "FINISHED"
            return result
    finally:
        tracker.finish(status)


@contextmanager
def _room_asked_for(home: Path) -> Iterator[None]:
    """A full disk is told as what it is, whichever library met it."""
    try:
        yield
    except DynolabError:
        raise
    except Exception as error:
        # safetensors and tokenizers wrap the system's answer in errors of their own.
        if getattr(error, "errno", None) != errno.ENOSPC and "(os error 28)" not in str(error):
            raise
        raise ConfigError(
            "DYNOLAB_HOME", str(home), "its disk is full; make room there, or name another folder"
        ) from error


def _commit(place: Place, output: Path, manifest: Manifest, *, replace: bool) -> Committed:
    """Commit; a store that is away for minutes does not cost what took hours to compute."""
    for pause in COMMIT_PAUSES:
        try:
            return place.commit(output, manifest, replace=replace)
        except StoreError as error:
            log.warning("the result is not committed yet, again in %g s: %s", pause, error)
            time.sleep(pause)
    return place.commit(output, manifest, replace=replace)


def _forget_resume(place: Place) -> None:
    try:
        place.clear_resume()
    except StoreError as error:
        log.warning("resume states that are no longer needed stay in the store: %s", error)


def _tags(stage: Stage[Config], key: str, inputs: Mapping[str, StageResult]) -> dict[str, str]:
    tags = {"stage": stage.name, "stage_version": str(stage.version), "stage_key": key}
    tags |= {f"input.{name}": source.digest for name, source in inputs.items()}
    revision = git_revision()
    return tags | {"git_revision": revision} if revision else tags


def _report(tracker: RunTracker, result: StageResult, manifest: Manifest, scratch: Path) -> None:
    """From the MLflow run to the result in the store, and the result's numbers."""
    tracker.set_tags({ADDRESS_TAG: result.address, DIGEST_TAG: result.digest})
    tracker.log_metrics(
        {f"result/{name}": value for name, value in manifest.metrics.items()}, manifest.step or 0
    )
    copy = scratch / "manifest.json"
    copy.write_bytes(manifest.to_bytes())
    tracker.log_artifact(copy, "manifests")
