"""`Work`: a stage body's inputs and folders. `StageResult`: what later stages read."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from dynolab.data.rows import Row, write_rows
from dynolab.errors import StoreError
from dynolab.likelihood.checked import Checks
from dynolab.store import Committed, Manifest, Place, Store, git_revision, library_versions
from tasks.runtime.keys import canonical
from tasks.runtime.track.progress import Progress, StageProgress, outcome_of

if TYPE_CHECKING:
    from tasks.runtime.track.runs import RunTracker

log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=BaseModel)


SHOWN_DIGITS = 12  # of a key


class StageConfig(BaseModel):
    """Base class of settings: immutable, rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StageResult(BaseModel):
    """A committed stage result: address, content digest, metrics."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    stage: str
    key: str
    address: str
    digest: str
    metrics: dict[str, float]
    mlflow_run_id: str | None
    cached: bool

    @property
    def short(self) -> str:
        """`<stage>/<key>` with as many digits as the command line shows and understands."""
        return f"{self.stage}/{self.key[:SHOWN_DIGITS]}"

    @classmethod
    def of(cls, place: Place, result: Committed, *, cached: bool) -> StageResult:
        """Describe the result committed at `place`."""
        manifest = result.manifest
        return cls(
            stage=place.stage,
            key=place.key,
            address=place.address(result),
            digest=manifest.digest,
            metrics=manifest.metrics,
            mlflow_run_id=manifest.mlflow_run_id,
            cached=cached,
        )


class Work(Generic[Config]):
    """One attempt at a stage.

    `name` is the display name. The body reads `config` and `input_folder`, writes its result under
    `output` and its logs under `logs`, reports to `tracker` and `progress`, and commits resume
    states. It may set `step`, `world_size` and `zero_stage`, which go into the manifest. `cache` is
    this machine's folder for files that can be made again. `version` is the stage's; `key_of` gives
    the key that this stage's result would have with another config.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        inputs: Mapping[str, StageResult],
        *,
        version: int,
        key_of: Callable[[Config], str],
        scratch: Path,
        cache: Path,
        store: Store,
        place: Place,
        tracker: RunTracker,
        progress: Progress,
        fresh: bool = False,
    ) -> None:
        self.name, self.config, self.inputs = name, config, inputs
        self.tracker, self.progress = tracker, progress
        self.scratch, self.output, self.logs = scratch, scratch / "output", scratch / "logs"
        self.cache = cache
        self.step: int | None = None
        self.world_size: int | None = None
        self.zero_stage: int | None = None
        self._version, self._key_of = version, key_of
        self._store, self._place = store, place
        self._fresh = fresh
        self._began = time.monotonic()
        self.output.mkdir(parents=True)
        self.logs.mkdir()

    @property
    def address(self) -> str:
        """The result's `<stage>/<key>`."""
        return f"{self._place.stage}/{self._place.key}"

    @property
    def short(self) -> str:
        """The address with as many digits as `StageResult.short` has."""
        return f"{self._place.stage}/{self._place.key[:SHOWN_DIGITS]}"

    @property
    def seconds(self) -> float:
        """Duration of the attempt so far."""
        return time.monotonic() - self._began

    def write_tables(self, **tables: Iterable[Row | Mapping[str, Any]]) -> None:
        """Write rows into the result, each table as `<name>.jsonl`."""
        for name, rows in tables.items():
            write_rows(self.output / f"{name}.jsonl", rows)

    def log_tables(self, **tables: Iterable[BaseModel | Mapping[str, Any]]) -> None:
        """Log rows to MLflow as `tables/<name>.json`, in the format of `mlflow.load_table`."""
        for name, rows in tables.items():
            dumped = [
                row.model_dump(mode="json") if isinstance(row, BaseModel) else row for row in rows
            ]
            columns = list(dumped[0]) if dumped else []
            content = {"columns": columns, "data": [list(row.values()) for row in dumped]}
            file = self.scratch / f"{name}.json"
            file.write_text(json.dumps(content), encoding="utf-8")
            self.tracker.log_artifact(file, "tables")
        # By this tag MLflow's pages find the tables, as after its own `log_table`.
        listed = [{"path": f"tables/{name}.json", "type": "table"} for name in tables]
        self.tracker.set_tags({"mlflow.loggedArtifacts": json.dumps(listed)})

    def log_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Log a result's metrics to MLflow; return them with the attempt's `seconds`."""
        self.tracker.log_metrics(metrics, 0)
        return {**metrics, "seconds": self.seconds}

    @contextmanager
    def shown(self, total_steps: int | None = None) -> Iterator[StageProgress]:
        """The stage's progress; the end of the block closes it as done or failed."""
        progress = self.progress.stage(self.name, total_steps)
        try:
            yield progress
        except BaseException as error:
            progress.close(outcome_of(error))
            raise
        progress.close("done")

    def input_folder(self, name: str, subfolder: str | None = None) -> Path:
        """Verified local folder of an input's files, read-only.

        Raises CorruptData if they differ from what was committed.
        """
        source = self.inputs[name]
        return self._store.folder(source.address, source.digest, subfolder)

    def input_holds(self, name: str, folder: str) -> bool:
        """Whether an input contains `folder`."""
        return any(path.startswith(f"{folder}/") for path in self.input_manifest(name).files)

    def input_manifest(self, name: str) -> Manifest:
        """The manifest of an input: its settings, and the digests of what it read."""
        source = self.inputs[name]
        return self._store.manifest(source.address, source.digest)

    def commit_resume(self, step: int, folder: Path) -> None:
        """Commit the state after `step` optimizer steps; the store keeps the newest few.

        If the store cannot be reached, this state is lost and training goes on.
        """
        try:
            self._place.commit_resume(step, folder, self.manifest({}))
        except StoreError as error:
            log.warning("training goes on without a resume state of step %d: %s", step, error)

    def newest_resume(self) -> tuple[int, Path] | None:
        """Step and verified folder of the newest intact resume state, read-only.

        The folder holds the state's `manifest.json`.
        """
        return self._place.newest_resume()

    def newest_resume_of(self, config: Config) -> tuple[int, Path] | None:
        """As `newest_resume`, but of this stage with another config, such as another engine.

        None if the result is computed from the start (`fresh`).
        """
        if self._fresh:
            return None
        return self._store.place(self._place.stage, self._key_of(config)).newest_resume()

    def manifest(self, metrics: dict[str, float], checks: Checks | None = None) -> Manifest:
        """The manifest of this attempt, still without its files.

        **Arguments:** `checks`: measurements of the models that it used (`checks_kept`).
        """
        return Manifest(
            stage=self._place.stage,
            key=self._place.key,
            version=self._version,
            parents={name: source.digest for name, source in self.inputs.items()},
            config=canonical(self.config),
            metrics={name: float(value) for name, value in metrics.items()},
            step=self.step,
            world_size=self.world_size,
            zero_stage=self.zero_stage,
            extra={"checks": canonical(checks, "checks")} if checks else {},
            libraries=library_versions(),
            git_revision=git_revision(),
            mlflow_run_id=self.tracker.run_id,
        )
