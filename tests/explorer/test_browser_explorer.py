"""The explorer in Chromium, on a study that was run in this process; and who may not get in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from dynolab.errors import ConfigError
from flows.explore import open_study
from flows.study.flow import STUDY
from tests.browsing import CHROMIUM, READERS, browser_page, faint
from tests.explorer.serving import explorer
from tests.flows.in_process import InProcess
from tests.flows.lab import SMALL

pytest.importorskip("playwright.sync_api")
pytest.importorskip("dash")
pytestmark = pytest.mark.services

PLAIN = {"kind": "plain", "ranks": 1}
LEFT_OUT = {
    "audit": None,
    "forces": None,
    "kernel": None,
    "squeezing": None,
    "ledger": {"pairs": 2, "answers": 2},
}
PATIENCE_MS = 90_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one study."""
    home = tmp_path_factory.mktemp("home")
    settings = yaml.safe_load(SMALL.read_text()) | LEFT_OUT
    settings["preference"]["engine"] = PLAIN
    settings["preference"]["record_steps"] = [1, 8]
    lab = InProcess(home)
    lab.run_plan(lab.plan(STUDY, settings))
    return home


@pytest.fixture(scope="module")
def link(home: Path) -> Iterator[str]:
    """What `dynolab explore` prints to be opened."""
    with explorer(home) as address:
        yield address


@pytest.fixture(params=READERS, ids=str)
def page(link: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A logged-in page that must not complain, and asks nobody else."""
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    width, dark = request.param
    own = link.partition("/?")[0]
    with browser_page(width, dark=dark) as (page, wrong):
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.set_default_timeout(PATIENCE_MS)
        page.on(
            "request",
            lambda asked: asked.url.startswith((own, "data:", "blob:")) or wrong.append(asked.url),
        )
        page.goto(link)
        yield page
    assert wrong == []


def seen(page: Any, text: str | re.Pattern[str]) -> None:
    """Waits for a text; nothing is wider than the screen, and all of it can be read."""
    page.get_by_text(text).first.wait_for()
    page.wait_for_function("() => document.querySelector('#status').innerText === ''")
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert faint(page) == []


wide = pytest.mark.parametrize("page", READERS[:1], indirect=True, ids=str)
"""For what the first test has seen on a narrow screen."""


def test_from_a_fallen_answer_to_a_map_to_a_what_if(page: Any) -> None:
    """All of it is reached without a mouse."""
    seen(page, "Who pulled it down")
    wanted, reached = {"token", "slider", "list", "navigation", "pusher"}, set()
    for _ in range(150):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(e => e.closest('.token') ? 'token' : e.getAttribute('role') === 'slider' ? "
                "'slider' : e.closest('.answers') ? 'list' : e.closest('nav') ? 'navigation' : "
                "e.closest('td') ? 'pusher' : '')(document.activeElement)"
            )
        )
        if wanted <= reached:
            break
    assert wanted <= reached
    inside = (
        "e => { const b = e.getBoundingClientRect(); return b.left >= 0 && b.right <= innerWidth }"
    )
    assert all(cell.evaluate(inside) for cell in page.locator("#view td").all())
    pusher = page.locator("#view td a").first
    name = pusher.inner_text()
    pusher.focus()
    page.keyboard.press("Enter")
    seen(page, f"{name} on ")
    page.locator(".plot .hm, .plot .heatmaplayer").first.wait_for(state="attached")
    assert page.locator("#map").evaluate("e => e === document.activeElement && scrollY > 0")
    page.locator("a.token").first.press("Enter")
    seen(page, re.compile("Who (pulled|held) “"))
    page.get_by_text("leave out", exact=True).first.press("Enter")
    page.get_by_text("left out", exact=True).first.wait_for()
    page.wait_for_function("() => document.activeElement.innerText === 'left out' && scrollY > 0")
    page.get_by_text("what if (1)").press("Enter")
    seen(page, "instead of")
    page.locator("summary", has_text="The recorded steps").press("Enter")
    seen(page, "would fall")
    doses = page.locator(".choices", has_text="rejected gradient")  # axes of a plot have a 0.3, too
    doses.get_by_text("0.3", exact=True).press("Enter")
    page.get_by_text("negative_dose").first.wait_for()
    seen(page, "preference_filter")
    with page.expect_download() as download:
        page.get_by_text("Download the 11 pairs").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 11
    page.get_by_text("pairs", exact=True).first.press("Enter")
    seen(page, "Whom it h")
    there = page.url
    page.goto("about:blank")
    page.goto(there)  # the address is the view
    seen(page, "Whom it h")
    page.goto(there.partition("?")[0] + "?pair=none&step=99")
    seen(page, "no pair none and no step 99")


@wide
def test_a_typed_answer_is_looked_at_and_two_trainings_side_by_side(page: Any) -> None:
    seen(page, "Who pulled it down")
    page.get_by_text("any other answer").press("Enter")
    page.locator("#typed-prompt").fill("What does the fox eat?")
    page.locator("#typed-response").fill(" The fox eats <b>berries</b>.")
    page.locator("#typed-look").press("Enter")
    seen(page, "An answer of your own")
    seen(page, "through rejected ones")
    page.locator("#view td a").first.press("Enter")
    seen(page, "on typed, token by token")
    assert page.locator("#view .answer b").count() == 0  # a text, and no markup
    there = page.url
    page.goto("about:blank")
    page.goto(there)
    seen(page, "on typed, token by token")
    page.locator("nav").get_by_text("SFT", exact=True).last.press("Enter")
    seen(page, "Who pulled it down, in one or the other")
    assert page.locator(".column h3").all_inner_texts() == ["DPO", "SFT"]
    # Links of the former view are there until the list is drawn again.
    page.locator(".answers a[href*='beside=']").first.press("Enter")
    seen(page, "log π went from")
    page.goto(there.partition("?")[0] + "?step=1")
    page.get_by_text("beside step").locator("..").get_by_text("8", exact=True).press("Enter")
    seen(page, "Who pulled it down, in one or the other")
    assert page.locator(".column h3").all_inner_texts() == ["step 1", "step 8"]


@wide
def test_slider_metric_objective_and_copies(page: Any, home: Path) -> None:
    seen(page, "over the whole training")
    seen(page, "Step by step, by all pairs")
    page.locator("[role=slider]").press("ArrowRight")
    page.wait_for_url("**step=0")
    seen(page, re.compile(r"nats at step 0: "))
    page.keyboard.press("ArrowRight")  # the focus has stayed
    page.wait_for_url("**step=1")
    seen(page, re.compile(r"nats at step \d+: "))
    page.get_by_text("a gradient step").press("Enter")
    seen(page, re.compile(r"nats at recorded step \d+: "))
    assert "metric=gradient" in page.url
    page.locator("#any-pair").click()
    page.keyboard.type("train-")
    page.get_by_role("option").nth(1).click()
    seen(page, "token by token")
    page.locator("#link").click()
    page.wait_for_function(
        "async url => await navigator.clipboard.readText() === url", arg=page.url
    )
    page.get_by_text("what if", exact=True).press("Enter")
    seen(page, "would fall")  # the ledger says nothing of gradient steps, so that these are open
    page.get_by_text("IPO", exact=True).press("Enter")
    seen(page, "IPO has no scale")
    page.locator(".choices", has_text="β").get_by_text("0.3", exact=True).press("Enter")
    page.wait_for_url("**beta=0.3*")
    seen(page, '"beta": 0.3')


def test_the_owner_gets_in_by_the_servers_own_names_alone(link: str) -> None:
    own, _, token = link.partition("/?token=")
    call, login = f"{own}/_dash-update-component", {"Authorization": f"Bearer {token}"}
    assert own.startswith("http://127.0.0.1:")
    assert requests.get(own, headers=login, timeout=30).ok
    for foreign in (
        {"Host": "rebound.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1"},
    ):
        answer = requests.post(call, json={}, headers=login | foreign, timeout=30)
        assert answer.status_code == 403, foreign


def test_what_is_no_study_or_no_longer_whole_is_said_in_one_message(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYNOLAB_HOME", str(tmp_path / "empty"))
    with pytest.raises(ConfigError, match="holds no study's result"):
        open_study("report")
    other = tmp_path / "other"
    shutil.copytree(home, other)
    monkeypatch.setenv("DYNOLAB_HOME", str(other))
    with pytest.raises(ConfigError, match="is a result of stage preference"):
        open_study("preference")
    assert open_study("report").pairs
    shutil.rmtree(other / "store" / "stages" / "data")
    with pytest.raises(ConfigError, match="input data is no longer in the store"):
        open_study("report")
