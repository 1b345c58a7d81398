"""Which stages an audit has, in which order, and what each reads."""

from __future__ import annotations

from collections.abc import Collection

import yaml

from flows.audit_parameters import MODEL, TRAINED, AuditParameters
from tasks.audit import AUDIT
from tasks.audit_page import AUDIT_PAGE, AuditPageConfig
from tasks.base import BASE
from tasks.data import DATA
from tasks.foresight import FORESIGHT, ForesightConfig
from tasks.runtime.chain import Step


def audit_steps(parameters: AuditParameters, given: Collection[str]) -> list[Step]:
    """The audit's stages in order; `given` are names of results that need no stage."""
    page = AuditPageConfig(
        name=parameters.name,
        objective=parameters.audit.objective.name,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    imports = [
        Step(field, BASE, one.base)
        for field, one in parameters.models.items()
        if field not in given
    ]
    judged, shown = [], {"data": "data", "audit": "audit"}
    if parameters.trained is not None:
        judged = [
            Step(
                "foresight",
                FORESIGHT,
                ForesightConfig(),
                {"data": "data", "audit": "audit", "model": TRAINED},
            )
        ]
        shown["foresight"] = "foresight"
    return [
        *([] if "data" in given else [Step("data", DATA, parameters.data)]),
        *imports,
        Step("audit", AUDIT, parameters.audit, {"data": "data", "model": MODEL}),
        *judged,
        Step("audit-page", AUDIT_PAGE, page, shown),
    ]
