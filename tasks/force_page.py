"""Stage `force-page`: the page of a force analysis."""

from __future__ import annotations

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import PageConfig, input_metrics, page_shown, stage_facts

ANALYSIS = "analysis_"


class ForcePageConfig(PageConfig):
    """Facts about the analysis that the page shows."""

    labels: tuple[str, ...]
    reference: str | None


def force_page(work: Work[ForcePageConfig]) -> dict[str, float]:
    """Reads an `analysis_<label>` for every checkpoint, and `kernel`.

    Results: `forces.html` and `figures/`; the page goes to MLflow. Returns the metrics of
    the analyses and the kernel.
    """
    from dynolab.report.forces.page import write_force_page
    from dynolab.report.inputs.study import ForcePageInputs, read_checkpoint, read_kernel

    config = work.config
    with page_shown(work):
        inputs = ForcePageInputs(
            name=config.name,
            checkpoints=tuple(
                read_checkpoint(label, work.input_folder(ANALYSIS + label))
                for label in config.labels
            ),
            kernel=read_kernel(work.input_folder("kernel")),
            reference=config.reference,
            settings=config.settings,
            stages=stage_facts(work, lambda name: name.replace("_", "-", 1)),
        )
        write_force_page(inputs, work.output)
    return input_metrics(work, "kernel") | {
        f"{label}/{name}": value
        for label in config.labels
        for name, value in input_metrics(work, ANALYSIS + label).items()
    }


FORCE_PAGE = Stage("force-page", 4, force_page)
