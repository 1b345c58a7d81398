"""What cannot run on the hosts that there are is refused before anything runs."""

from __future__ import annotations

import pytest

from dynolab.errors import ConfigError
from flows.parameters import load_parameters
from flows.run import check_hosts
from flows.study import StudyParameters, study_steps
from tasks.runtime.system.settings import Settings
from tests.flows.lab import SMALL


def settings(hosts: int) -> Settings:
    return Settings.from_environment(
        {"DYNOLAB_HOSTS": str(hosts), "DYNOLAB_RENDEZVOUS": "10.0.0.1:29400"}
    )


def test_a_training_that_hosts_cannot_share_is_named() -> None:
    steps = study_steps(load_parameters(StudyParameters, SMALL, []))
    check_hosts(steps, settings(1))
    check_hosts(steps, settings(2))
    with pytest.raises(
        ConfigError, match=r"preference\.engine\.ranks = 2: .*multiple of DYNOLAB_HOSTS = 3"
    ):
        check_hosts(steps, settings(3))
