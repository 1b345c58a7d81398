"""Which stages the building of a probe set has, in which order, and what each reads."""

from __future__ import annotations

from dynolab.probes.making.probe_set import ProbeSetConfig
from flows.probes_parameters import ProbesParameters
from tasks.base import BASE
from tasks.data import DATA
from tasks.probe_set import PROBE_SET
from tasks.runtime.chain import Step


def probes_steps(parameters: ProbesParameters) -> list[Step]:
    """The stages in order: data, the untrained policy where there is one, the probe set."""
    steps = [Step("data", DATA, parameters.data)]
    base = parameters.base
    if base is not None:
        steps.append(Step("base", BASE, base, {"data": "data"} if base.source == "builtin" else {}))
    return [
        *steps,
        probe_set_step(
            "probe-set", parameters.probe_set, data="data", model=None if base is None else "base"
        ),
    ]


def probe_set_step(name: str, config: ProbeSetConfig, *, data: str, model: str | None) -> Step:
    """The stage that builds a probe set, from the results of two steps."""
    reads = {"data": data} if model is None else {"data": data, "model": model}
    return Step(name, PROBE_SET, config, reads)
