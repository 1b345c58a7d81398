"""README's screenshots, of a platform on which `dynolab sweep` has ended.

python -m tests.platform.screenshots PREFECT_LINK MLFLOW_LINK   # as `make up` prints them
"""

from __future__ import annotations

import re
import sys
from typing import Any

from tests.browsing import browser_page
from tests.flows.lab import ROOT


def keep(name: str, page: Any) -> None:
    """Takes a picture of a page when it has settled."""
    page.wait_for_timeout(6000)
    page.screenshot(path=ROOT / "deploy" / "pictures" / f"{name}.png")


if __name__ == "__main__":
    with browser_page(1200) as (page, _):
        page.goto(sys.argv[1])
        page.get_by_role("link", name="Deployments").first.click()
        page.locator("a[href*='/deployments/deployment/']").first.click()
        page.get_by_role("button", name="Run", exact=True).first.click()
        page.get_by_text("Custom run").first.click()
        keep("prefect-form", page)
        page.get_by_role("link", name="Runs").first.click()
        page.get_by_role("link", name=re.compile("^sweep")).last.click()
        keep("prefect-run", page)
        page.goto(sys.argv[2])
        page.get_by_role("link", name="beta", exact=True).first.click()
        with page.expect_popup() as opened:
            page.get_by_role("link", name="Charts", exact=True).click()
        charts = opened.value
        note = charts.get_by_role("button", name=re.compile("^Exit shared"))
        note.locator("xpath=following::button[1]").click()  # closes it
        keep("mlflow-sweep", charts)
