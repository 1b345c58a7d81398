"""A person in a real browser: starts a study from its form, watches it, reads what it found.

What the person sees is kept as pictures in `.dynolab/screenshots/browser-…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browsing import CHROMIUM
from tests.flows.lab import SMALL, until
from tests.platform.conftest import Platform, result_folder

playwright = pytest.importorskip("playwright.sync_api")

pytestmark = [
    pytest.mark.services,
    pytest.mark.study,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium"),
]
RUN_SECONDS = 1200.0
PATIENCE_MS, TRIES = 150_000, 5


class Person:
    """Somebody at a browser who keeps pictures of what they see."""

    def __init__(self, page: playwright.Page, folder: Path) -> None:
        self.page, self.folder, self.pictures = page, folder, 0
        self.run = ""
        page.on("response", self._note_run)

    def _note_run(self, response: playwright.Response) -> None:
        """The run that a submitted form has made."""
        if response.url.endswith("/create_flow_run") and response.ok:
            self.run = str(response.json()["id"])

    def look(self, at: str) -> None:
        self.page.wait_for_timeout(1500)
        self.pictures += 1
        self.page.screenshot(path=self.folder / f"{self.pictures:02d}-{at}.png", full_page=True)

    def field(self, label: str) -> playwright.Locator:
        """The input under a label of a form."""
        titled = self.page.locator("label", has_text=re.compile(rf"^\s*{label}\b"))
        return titled.locator("xpath=following::*[self::input or self::textarea][1]")

    def click(self, target: playwright.Locator, leads_to: str) -> None:
        """Clicks until the page is there: one that is being drawn anew loses a click."""
        for _ in range(TRIES):
            target.click()
            try:
                self.page.wait_for_url(re.compile(leads_to), timeout=PATIENCE_MS / TRIES)
                return
            except playwright.TimeoutError:
                self.look("again")
        raise AssertionError(f"no click leads to {leads_to}; the page is {self.page.url}")

    def start(self, deployment: str, name: str, **fields: str) -> None:
        """Opens a deployment's form by clicks, fills it, submits it; the run's page is open."""
        page = self.page
        self.click(page.get_by_role("link", name="Deployments").first, "/deployments")
        link = page.locator("a[href*='/deployments/deployment/']").first
        link.wait_for()
        self.look(f"{name}-deployments")
        assert link.inner_text() == deployment  # the first of the list
        self.click(link, "/deployments/deployment/")
        page.get_by_role("button", name="Run", exact=True).first.click()
        self.click(page.get_by_text("Custom run").first, "/run")
        self.field("Name").wait_for()
        page.get_by_text("Additional Options").first.click()  # where the queue is chosen
        self.look(f"{name}-empty-form")
        for label, value in {"Name": name, **fields}.items():
            self.field(label).fill(value)
        self.look(f"{name}-form")
        self.click(page.get_by_role("button", name="Submit"), r"/deployment/[0-9a-f-]+(\?|$)")
        page.wait_for_timeout(1000)
        self.click(page.locator(f"a[href*='/runs/flow-run/{self.run}']").first, self.run)


@pytest.fixture
def person(platform: Platform, request: pytest.FixtureRequest) -> Iterator[Person]:
    folder = result_folder(f"browser-{request.node.callspec.id}")
    for old in folder.glob("*.png"):
        old.unlink()
    with playwright.sync_playwright() as browsers:
        browser = browsers.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        yield Person(page, folder)
        browser.close()


@pytest.mark.timeout(2 * RUN_SECONDS + 600)
@pytest.mark.parametrize(
    "written",
    [{"Project": "small", "Study Text": SMALL.read_text()}, {"Project": "builtin"}],
    ids=["small", "builtin"],
)
def test_a_study_from_its_form_to_the_comparison_in_mlflow(
    written: dict[str, str], platform: Platform, person: Person
) -> None:
    page = person.page
    page.goto(platform.link("Prefect"))
    for name, beta in (("gentle", "0.1"), ("firm", "0.5")):
        person.start("a-study", name, Beta=beta, **written)
        run = person.run
        until(lambda run=run: platform.state(run)["name"] == "Running", RUN_SECONDS)
        page.wait_for_timeout(10_000)  # a person watches bars grow
        person.look(f"{name}-runs")
        running = page.url
        page.goto("about:blank")  # the moving page, drawn in software, takes most of a core
        assert platform.end(run, RUN_SECONDS) == "Completed"
        page.goto(running)
        page.get_by_text("Completed", exact=True).first.wait_for()
        page.wait_for_timeout(3000)  # the time line is drawn
        person.look(f"{name}-completed")

    run_page = page.url
    for title, shown in (
        ("Charts of firm", "squeeze/gap"),
        ("Report of firm", "report/report.html"),
        ("MLflow run of firm", "Charts"),
    ):
        page.goto(run_page)
        page.get_by_role("tab", name="Artifacts").click()
        page.get_by_text("summary-firm-").last.click()
        link = page.get_by_role("link", name=title).first
        link.wait_for()
        person.look("summary")
        link.click()
        page.get_by_text(shown).first.wait_for()
        person.look(title.replace(" ", "-").lower())
        assert page.url.startswith(platform.mlflow)
    page.get_by_role("heading", name="firm").wait_for()
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Report", exact=True).click()
    report = opened.value
    report.frame_locator("iframe").get_by_text("What did DPO do").first.wait_for()
    report.close()

    page.goto(platform.link("MLflow"))
    page.get_by_role("link", name="Experiments").first.click()
    page.get_by_role("link", name=written["Project"], exact=True).click()
    for name in ("gentle", "firm"):
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name))
        row.get_by_role("checkbox").first.check(force=True)
    person.look("two-runs")
    page.get_by_role("button", name="Compare").first.click()
    page.get_by_text("preference.objective.beta").first.wait_for()
    person.look("comparison")
    words = set(re.split(r"\s+", page.inner_text("body")))
    assert {"gentle", "firm", "0.1", "0.5", "probe/chosen/logp"} <= words
