"""Stage `force-page`: the page of a force analysis."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work

ANALYSIS = "analysis_"


class ForcePageConfig(BaseModel):
    """What the page says of the analysis itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    labels: tuple[str, ...]
    reference: str | None
    settings: str


def force_page(work: Work[ForcePageConfig]) -> dict[str, float]:
    """Reads an `analysis_<label>` for every checkpoint, and `kernel`.

    Results: `forces.html` and `figures/`; both go to MLflow as well. Returns the analyses'
    numbers.
    """
    from dynolab.report.inputs.forces import ForcePageInputs, read_checkpoint
    from dynolab.report.inputs.study import StageFacts, read_kernel
    from dynolab.report.pages.forces import write_force_page

    config = work.config
    with work.shown():
        inputs = ForcePageInputs(
            name=config.name,
            checkpoints=tuple(
                read_checkpoint(label, work.input_folder(ANALYSIS + label))
                for label in config.labels
            ),
            kernel=read_kernel(work.input_folder("kernel")),
            reference=config.reference,
            settings=config.settings,
            stages=tuple(
                StageFacts(
                    stage=name.replace("_", "-", 1),
                    key=source.key,
                    seconds=source.metrics.get("seconds"),
                    mlflow_run_id=source.mlflow_run_id,
                )
                for name, source in work.inputs.items()
            ),
        )
        write_force_page(inputs, work.output)
    work.tracker.log_artifact(work.output / "forces.html", "report")
    for file in sorted((work.output / "figures").glob("*.html")):
        work.tracker.log_artifact(file, "plots")
    kernel = {
        name: value for name, value in work.inputs["kernel"].metrics.items() if name != "seconds"
    }
    return kernel | {
        f"{label}/{name}": value
        for label in config.labels
        for name, value in work.inputs[ANALYSIS + label].metrics.items()
        if name != "seconds"
    }


FORCE_PAGE = Stage("force-page", 1, force_page)
