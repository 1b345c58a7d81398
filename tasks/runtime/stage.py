"""Runs a stage: key, cache lookup, claim, work, commit."""

from __future__ import annotations

import errno
import logging
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Generic
from uuid import uuid4

from dynolab.costs.machines import StageCost
from dynolab.errors import ConfigError, DynolabError, Pruned, StoreError
from dynolab.functions import Sources, changed_files
from dynolab.likelihood.checked import checks_kept
from dynolab.store import Claim, Committed, Manifest, Place, Store, git_revision
from tasks.runtime.keys import canonical, stage_key, without_sources
from tasks.runtime.launch.devices import own_gpu
from tasks.runtime.system.scratch import scratch_folder
from tasks.runtime.system.settings import Settings
from tasks.runtime.track.progress import Progress, publish_links, run_tags
from tasks.runtime.track.runs import STAGE_KEY_TAG, RunTracker, Status, shown_params
from tasks.runtime.track.tracking import Tracking
from tasks.runtime.work import Config, StageResult, Work

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RUN_CREATION_SECONDS = 2.0
ADDRESS_TAG, DIGEST_TAG = "store.address", "store.digest"
COMMIT_PAUSES = (5.0, 30.0, 120.0)  # seconds


@dataclass(frozen=True)
class Stage(Generic[Config]):
    """A kind of computation whose result is committed under a key.

    `version`: raise it when the same settings give another result. `body` computes the result and
    returns its metrics. `operational`: dotted config fields that do not change the result.
    `estimate`: gives the memory, disk and time that it takes, from `tasks.shared.costs.Costs`, the
    stage's config, and its inputs' configs.
    """

    name: str
    version: int
    body: Callable[[Work[Config]], dict[str, float]]
    operational: Collection[str] = ()
    estimate: Callable[..., StageCost] | None = None


def plan_key(stage: Stage[Config], config: Config, inputs: Mapping[str, StageResult]) -> str:
    """Compute the key of a stage's result, before anything runs."""
    digests = {name: source.digest for name, source in inputs.items()}
    return stage_key(stage.name, stage.version, config, stage.operational, digests)


@dataclass
class Platform:
    """The services that stages use, one per process.

    The first stage that is not cached opens tracking and the study's parent run: a fully cached
    study needs no MLflow and creates no run there.
    """

    settings: Settings
    store: Store
    open_tracking: Callable[[], Tracking]
    progress: Callable[[], Progress]
    open_parent_run: Callable[[Tracking], RunTracker] | None = None

    @cached_property
    def tracking(self) -> Tracking:
        """The process's one connection to MLflow."""
        return self.open_tracking()

    @cached_property
    def parent_run(self) -> RunTracker | None:
        """The study's MLflow run, parent of the stages' runs."""
        return self.open_parent_run(self.tracking) if self.open_parent_run else None

    @property
    def has_worked(self) -> bool:
        """Whether tracking was opened, by a stage that was not cached."""
        return "tracking" in vars(self)


def lookup(stage: Stage[Config], key: str, platform: Platform) -> StageResult | None:
    """The committed result under a key, if there is one.

    Raises ConfigError if the store cannot be read because a setting is wrong.
    """
    place = platform.store.place(stage.name, key)
    try:
        committed = place.committed()
    except StoreError:
        platform.store.check_writable()  # raises ConfigError if a setting is wrong
        raise
    return StageResult.of(place, committed, cached=True) if committed else None


def changed_sources(
    stage: Stage[Config],
    config: Config,
    inputs: Mapping[str, StageResult],
    platform: Platform,
) -> list[str]:
    """Files of a user's functions that changed since the stage last ran with these settings.

    It need not have ended: its resume states count, too. Empty where settings name no such function
    and where the stage did not run with them.
    """
    sources: Sources = {}
    settings = without_sources(canonical(config), sources)
    if not sources:
        return []
    parents = {name: source.digest for name, source in inputs.items()}
    newest = datetime.min.replace(tzinfo=UTC)  # older than any attempt
    changed: list[str] = []
    for key in platform.store.files.children(f"stages/{stage.name}"):
        for manifest in platform.store.place(stage.name, key).manifests():
            earlier: Sources = {}
            # `earlier` gets the digests in this attempt's config; empty: it used no function.
            is_same = without_sources(manifest.config, earlier) == settings
            if is_same and earlier and manifest.parents == parents and manifest.created > newest:
                newest, changed = manifest.created, changed_files(earlier, sources)
    return changed


def run_stage(
    stage: Stage[Config],
    config: Config,
    inputs: Mapping[str, StageResult],
    platform: Platform,
    *,
    name: str | None = None,
    compared_by: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> StageResult:
    """Return the stage's result: the committed one, another run's, or computed here.

    `name`: shown in MLflow and in the progress, for studies that run one stage several times;
    default: the stage's name. `compared_by`: of a comparison, whose runs in MLflow begin
    with the stage's name, as they differ by it: more parameters of its run, which tell it
    from others. `fresh`: compute from the start even if a result is committed, and
    replace it.

    Raises whatever the body raises, after its logs are uploaded to the store; before any work
    ConfigError if the store cannot be written, and CorruptData if an input is damaged.
    """
    key = plan_key(stage, config, inputs)
    earlier = lookup(stage, key, platform)
    if earlier is not None and not fresh:
        platform.progress().cached(name or stage.name, earlier.short)
        return earlier

    def finished_meanwhile() -> StageResult | None:
        # With `fresh`, the result that is to be replaced is no answer: another address is.
        latest = lookup(stage, key, platform)
        is_new = latest and (earlier is None or latest.address != earlier.address)
        return latest if is_new else None

    platform.store.check_writable()
    for source in inputs.values():
        if source.cached:  # others were hashed as they were committed
            platform.store.check_input(source.address, source.digest)
    if changed := changed_sources(stage, config, inputs, platform):
        platform.progress().note(
            name or stage.name, f"{', '.join(changed)} changed: it is computed again"
        )
    place = platform.store.place(stage.name, key)
    with place.claim() as claim:
        # Once more after the claim: its former holder may have committed just before it let go.
        result = _wait_for(claim, finished_meanwhile, stage.name) or finished_meanwhile()
        if result is not None:
            log.info("stage %s: another run computed %s", stage.name, result.address)
            return result
        if fresh:
            place.clear_resume()
        shown_name, parent = name or stage.name, platform.parent_run
        titles = [parent.record.name, shown_name] if parent else [shown_name]
        run = RunTitle(
            " / ".join(titles if compared_by is None else titles[::-1]),
            shown_params(config) | dict(compared_by or {}),
        )
        return _compute(stage, shown_name, config, inputs, platform, place, run=run, fresh=fresh)


def _wait_for(
    claim: Claim, finished: Callable[[], StageResult | None], stage: str
) -> StageResult | None:
    """Wait until the claim is acquired (returns None) or another run commits (its result)."""
    announced = ""
    while not claim.try_acquire():
        if (result := finished()) is not None:
            return result
        holder = claim.holder()
        if holder and holder != announced:
            log.warning("stage %s: waiting for %s, which is computing it", stage, holder)
            announced = holder
        time.sleep(POLL_SECONDS)
    return None


@dataclass(frozen=True)
class RunTitle:
    """Name and parameters of a stage's run in MLflow."""

    name: str
    params: Mapping[str, str]


def _compute(
    stage: Stage[Config],
    name: str,
    config: Config,
    inputs: Mapping[str, StageResult],
    platform: Platform,
    place: Place,
    *,
    run: RunTitle,
    fresh: bool,
) -> StageResult:
    attempt = uuid4().hex
    folder = f"{stage.name}-{place.key[:12]}-{attempt}"
    tags = {
        "kind": "stage",
        "stage": stage.name,
        STAGE_KEY_TAG: place.key,
        "stage_version": str(stage.version),
        **{f"input.{name}": source.digest for name, source in inputs.items()},
    }
    if revision := git_revision():
        tags["git_revision"] = revision
    parent = platform.parent_run
    tracker = platform.tracking.start_run(
        run.name,
        parent=parent,
        tags=tags | run_tags(),
        params=run.params,
        resume_by=None if fresh else STAGE_KEY_TAG,
    )
    publish_links("mlflow", name, {}, tracker=tracker)
    status: Status = "FAILED"
    raised: BaseException | None = None
    try:
        with (
            explain_full_disk(platform.settings.home),
            scratch_folder(platform.settings.scratch, folder) as scratch,
        ):
            work = Work(
                name,
                config,
                inputs,
                version=stage.version,
                key_of=lambda changed_config: plan_key(stage, changed_config, inputs),
                scratch=scratch,
                cache=platform.settings.cache,
                store=platform.store,
                place=place,
                tracker=tracker,
                progress=platform.progress(),
                fresh=fresh,
            )
            try:
                with checks_kept() as checks, own_gpu():
                    metrics = stage.body(work)
            except BaseException as error:
                raised = error
                # Ctrl-C, SIGTERM and a sweep's pruning end a stage in which nothing went wrong.
                failed = isinstance(error, Exception) and not isinstance(error, Pruned)
                status = "FAILED" if failed else "KILLED"
                with suppress(OSError):  # the disk may be what failed
                    (work.logs / "error.txt").write_text(traceback.format_exc())
                raise
            finally:
                place.upload_logs(attempt, work.logs)
            tracker.wait_created(RUN_CREATION_SECONDS)  # the manifest names MLflow's run
            committed = _commit(place, work.output, work.manifest(metrics, checks), replace=fresh)
            try:
                place.clear_resume()
            except StoreError as error:
                log.warning("cannot delete resume states that are no longer needed: %s", error)
            result = StageResult.of(place, committed, cached=False)
            log.info("%s is committed at %s", name, result.address)
            _report(tracker, result, committed.manifest, scratch)
            status = "FINISHED"
            return result
    finally:
        tracker.finish(status, raised)


@contextmanager
def explain_full_disk(home: Path) -> Iterator[None]:
    """Turns any library's disk-full error into one clear message."""
    try:
        yield
    except DynolabError:
        raise
    except Exception as error:
        # safetensors and tokenizers wrap the OSError in exceptions of their own.
        if getattr(error, "errno", None) != errno.ENOSPC and "(os error 28)" not in str(error):
            raise
        raise ConfigError(
            "DYNOLAB_HOME", str(home), "its disk is full; free space there or set another folder"
        ) from error


def _commit(place: Place, output: Path, manifest: Manifest, *, replace: bool) -> Committed:
    """Commit; retry for minutes, so that a store outage does not lose hours of work."""
    for pause in COMMIT_PAUSES:
        try:
            return place.commit(output, manifest, replace=replace)
        except StoreError as error:
            log.warning("cannot commit the result, trying again in %g s: %s", pause, error)
            time.sleep(pause)
    return place.commit(output, manifest, replace=replace)


def _report(tracker: RunTracker, result: StageResult, manifest: Manifest, scratch: Path) -> None:
    """Log to the MLflow run where the result is stored, its metrics and its manifest."""
    tracker.set_tags({ADDRESS_TAG: result.address, DIGEST_TAG: result.digest})
    tracker.log_metrics(
        {f"result/{name}": value for name, value in manifest.metrics.items()}, manifest.step or 0
    )
    copy = scratch / "manifest.json"
    copy.write_bytes(manifest.to_bytes())
    tracker.log_artifact(copy, "")
