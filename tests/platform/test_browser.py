"""A person in a real browser: starts a study from its form, watches it, compares runs in MLflow.

What the person sees is kept as pictures in `.dynolab/screenshots/browser`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.lab import SMALL, until
from tests.platform.conftest import Platform, result_folder

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.services,
    pytest.mark.study,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
]
RUN_SECONDS = 420.0


class Person:
    """Somebody at a browser who keeps pictures of what they see."""

    def __init__(self, page: playwright.Page, folder: Path) -> None:
        self.page, self.folder, self.pictures = page, folder, 0

    def look(self, at: str) -> None:
        self.page.wait_for_timeout(1500)
        self.pictures += 1
        self.page.screenshot(path=self.folder / f"{self.pictures:02d}-{at}.png", full_page=True)

    def field(self, label: str) -> playwright.Locator:
        """The input under a label of a form."""
        titled = self.page.locator("label", has_text=re.compile(rf"^\s*{label}\b"))
        return titled.locator("xpath=following::*[self::input or self::textarea][1]")

    def start(self, deployment: str, name: str, **fields: str) -> None:
        """Opens a deployment's form by clicks, fills it, submits it; the run's page is open."""
        self.page.get_by_role("link", name="Deployments").first.click()
        self.page.get_by_placeholder("Search deployments").fill(deployment)
        link = self.page.locator("a[href*='/deployments/deployment/']", has_text=deployment)
        link.first.click()
        self.page.get_by_role("button", name="Run", exact=True).first.click()
        self.page.get_by_text("Custom run").first.click()
        self.field("Name").wait_for()
        self.look(f"{name}-empty-form")
        for label, value in {"Name": name, **fields}.items():
            self.field(label).fill(value)
        self.look(f"{name}-form")
        self.page.get_by_role("button", name="Submit").click()


@pytest.fixture
def person(platform: Platform) -> Iterator[Person]:
    folder = result_folder("browser")
    for old in folder.glob("*.png"):
        old.unlink()
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(60_000)
        yield Person(page, folder)
        browser.close()


def test_a_study_from_its_form_to_the_comparison_in_mlflow(
    platform: Platform, person: Person
) -> None:
    page = person.page
    page.goto(platform.prefect)
    for name, beta in (("gentle", "0.1"), ("firm", "0.5")):
        person.start("study", name, Beta=beta, **{"Study Text": SMALL.read_text()})
        page.locator("a[href*='/runs/flow-run/']").first.click()
        run = page.url.partition("flow-run/")[2].partition("?")[0]
        until(lambda run=run: platform.state(run) == "Running", RUN_SECONDS)
        page.get_by_text("preference-").first.wait_for()
        person.look(f"{name}-runs")
        assert until(lambda run=run: platform.end_of(run), RUN_SECONDS) == "Completed"
        person.look(f"{name}-completed")

    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("mlflow-firm", exact=True).last.click()
    link = page.get_by_role("link", name="MLflow run of firm").first
    link.wait_for()
    person.look("link-to-mlflow")
    link.click()
    page.get_by_role("heading", name="firm").wait_for()
    assert page.url.startswith(platform.mlflow)
    person.look("mlflow-run")

    page.goto(page.url.partition("/runs/")[0] + "/runs")
    for name in ("gentle", "firm"):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name))
        row.get_by_role("checkbox").first.check(force=True)
    person.look("two-runs")
    page.get_by_role("button", name="Compare").first.click()
    page.get_by_text("preference.objective.beta").first.wait_for()
    person.look("comparison")
    told = page.inner_text("body")
    assert {"gentle", "firm", "0.1", "0.5"} <= set(re.split(r"\s+", told))
