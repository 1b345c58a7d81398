"""README's pictures of the platform, taken as its text leads: a form, a sweep, its trials.

    python -m tests.platform.pictures

Needs Debian's chromium; computes the built-in sweep of eight β in a home of its own.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from mlflow.tracking import MlflowClient

from tests.browsing import browser_page
from tests.flows.lab import ROOT, Lab, until
from tests.platform.conftest import platform_of

PICTURES = ROOT / "deploy" / "pictures"
HALF = 4  # trials, when the sweep's picture is taken
DRAWN_MS = 8_000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser_page(1200) as (page, _):
        lab = Lab(Path(folder) / "lab")
        with platform_of(lab) as platform:

            def take(name: str, address: str) -> None:
                page.goto(address)
                page.wait_for_timeout(DRAWN_MS)  # charts are drawn one after the other
                page.screenshot(path=PICTURES / f"{name}.png")
                page.goto("about:blank")  # a moving page takes most of a core

            page.set_default_timeout(120_000)
            pages = platform.prefect.replace("/api", "/v2")
            page.goto(platform.link("Prefect"))
            page.goto(platform.link("MLflow"))
            study = platform.api("GET", "deployments/name/study/a-study")["id"]
            take("prefect-form", f"{pages}/deployments/deployment/{study}/run")

            run = platform.start("sweep/a-sweep", study_file="sweep_beta.yaml")
            finished = f"{HALF} complete"
            report = lab.home / "reports" / "beta.html"
            until(lambda: report.exists() and finished in report.read_text(), 3600)
            take("prefect-run", f"{pages}/runs/flow-run/{run}")
            platform.end(run, 3600)
            token = platform.login["Authorization"].partition(" ")[2]
            runs = MlflowClient(platform.mlflow.replace("://", f"://dynolab:{token}@"))
            (sweep,) = runs.search_runs(["1"], "tags.kind = 'sweep'")
            note = sweep.data.tags["mlflow.note.content"]
            (charts,) = re.findall(r"\[Charts\]\((.+?)\)", note)
            take("mlflow-sweep", f"{platform.mlflow}/{charts}")


if __name__ == "__main__":
    main()
