"""Stage `audit-page`: the page of an audit."""

from __future__ import annotations

from tasks.runtime.stage import Stage
from tasks.runtime.work import Work
from tasks.shared.page_helpers import (
    PageConfig,
    input_folder,
    input_metrics,
    page_shown,
    stage_facts,
)


class AuditPageConfig(PageConfig):
    """Facts about the audit that the page shows."""

    objective: str


def audit_page(work: Work[AuditPageConfig]) -> dict[str, float]:
    """Reads inputs `data`, `audit`, and, if training is done, `foresight`.

    Results: `audit.html` and `figures/`; the page goes to MLflow. Returns the inputs' metrics.
    """
    from dynolab.report.audit import write_audit_page
    from dynolab.report.inputs.study import AuditPageInputs, read_audit

    config = work.config
    with page_shown(work):
        inputs = AuditPageInputs(
            name=config.name,
            objective=config.objective,
            audit=read_audit(
                work.input_folder("data"),
                work.input_folder("audit"),
                input_folder(work, "foresight"),
            ),
            settings=config.settings,
            stages=stage_facts(work),
        )
        write_audit_page(inputs, work.output)
    return {
        name: value
        for name, value in input_metrics(work).items()
        if name.startswith(("audit/", "foresight/"))
    }


AUDIT_PAGE = Stage("audit-page", 3, audit_page)
