"""Which stages a force analysis has, in which order, and what each reads."""

from __future__ import annotations

from collections.abc import Collection

import yaml

from flows.forces_parameters import ForcesParameters, model_step
from tasks.analysis import ANALYSIS, AnalysisJob
from tasks.base import BASE
from tasks.data import DATA
from tasks.force_page import FORCE_PAGE, ForcePageConfig
from tasks.kernel import KERNEL, KernelJob
from tasks.runtime.chain import Step


def forces_steps(parameters: ForcesParameters, given: Collection[str]) -> list[Step]:
    """The analysis' stages in order; `given` are names of results that need no stage."""
    labels = tuple(parameters.checkpoints)
    models = {label: model_step(label) for label in labels}
    reference = {}
    if parameters.needs_reference:
        reference = {"reference": models[parameters.reference_label]}
    imports = [
        Step(models[label], BASE, one.base)
        for label, one in parameters.checkpoints.items()
        if models[label] not in given
    ]
    analyses = [
        Step(
            f"analysis-{label}",
            ANALYSIS,
            AnalysisJob(**dict(parameters.analysis), step=one.step),
            {"data": "data", "model": models[label], **reference},
        )
        for label, one in parameters.checkpoints.items()
    ]
    kernel = KernelJob(
        **dict(parameters.kernel),
        labels=labels,
        steps={label: one.step for label, one in parameters.checkpoints.items()},
    )
    page = ForcePageConfig(
        name=parameters.name,
        labels=labels,
        reference=parameters.reference_label if reference else None,
        settings=yaml.safe_dump(parameters.model_dump(mode="json"), sort_keys=False),
    )
    answers = {f"analysis_{label}": f"analysis-{label}" for label in labels}
    return [
        *([] if "data" in given else [Step("data", DATA, parameters.data)]),
        *imports,
        *analyses,
        Step(
            "kernel",
            KERNEL,
            kernel,
            {"data": "data", **{f"model_{label}": models[label] for label in labels}},
        ),
        Step("force-page", FORCE_PAGE, page, {"kernel": "kernel", **answers}),
    ]
