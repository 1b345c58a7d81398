"""What Compose would start, started here: each service's own command, environment and check."""

from __future__ import annotations

import json

import pytest
import requests

from tests.deploy.backends import missing_programs
from tests.deploy.started import IN_ORDER, START_SECONDS, TOKEN, started
from tests.flows.lab import ROOT, until

pytestmark = [
    pytest.mark.services,
    pytest.mark.study,
    pytest.mark.skipif(bool(missing_programs()), reason=f"not installed: {missing_programs()}"),
]
TEMPLATE = json.loads((ROOT / "deploy/kubernetes/base-job-template.json").read_text())


def test_each_service_comes_up_by_its_own_command_and_passes_its_own_check(
    s3_server: str,
) -> None:
    with started(s3_server) as composed:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        api = f"http://127.0.0.1:{composed.prefect}/api"
        for name in IN_ORDER:
            if name == "bootstrap":
                pool = {"name": "training", "type": "kubernetes", "base_job_template": TEMPLATE}
                made = requests.post(f"{api}/work_pools/", headers=headers, json=pool, timeout=30)
                assert made.ok, made.text
            composed.begin(name)
        kept = requests.get(f"{api}/work_pools/training", headers=headers, timeout=30).json()
        assert (kept["type"], kept["base_job_template"]) == ("kubernetes", TEMPLATE)
        study = requests.get(f"{api}/deployments/name/study/a-study", headers=headers, timeout=30)
        assert study.ok and study.json()["entrypoint"] == "flows.deploy.study"

        def workers() -> list[tuple[str, str]]:
            found = requests.post(
                f"{api}/work_pools/cpu/workers/filter", headers=headers, json={}, timeout=30
            )
            return [(worker["name"], worker["status"]) for worker in found.json()]

        # A worker is healthy before its first heartbeat has come to the server.
        assert until(workers, START_SECONDS) == [("cpu", "ONLINE")]
        assert requests.get(f"{api}/deployments/name/study/a-study", timeout=30).status_code == 401
        mlflow = f"http://127.0.0.1:{composed.mlflow}/api/2.0/mlflow/experiments/get"
        found = requests.get(mlflow, params={"experiment_id": "0"}, headers=headers, timeout=30)
        assert found.ok
        for name in IN_ORDER:
            for secret in (composed.password, TOKEN):
                assert secret not in composed.log(name).read_text(), name
