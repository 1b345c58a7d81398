"""Nobody but the owner gets into running servers: no program without a login, no other site."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.runtime.servers.services import MLFLOW, PREFECT, Services
from tasks.runtime.system.secret_files import login_token, own_folder
from tests.browsing import CHROMIUM
from tests.platform import doors, other_sites
from tests.platform.doors import Found, Owner
from tests.platform.explorer_page import explorer_of

Tell = Callable[[Found, int], None]


@pytest.fixture(scope="module")
def owner(started_servers: Services) -> Iterator[Owner]:
    servers, home = started_servers.by_name, started_servers.home
    with explorer_of(home) as (explorer, process):
        pids = [*(server.pid for server in servers.values()), process]
        urls = servers[PREFECT].url, servers[MLFLOW].url, f"http://{explorer}"
        owner = Owner(*urls, login_token(home), pids)
        assert owner.ask("PUT", owner.artifact, data=b"kept").ok and owner.start_address()
        yield owner


@pytest.fixture
def tell(record_property: Callable[[str, int], None]) -> Tell:
    """Records the ways for `tests.benchmarks.doors`, and fails for an open one."""

    def told(found: Found, least: int) -> None:
        record_property("ways_tried", len(found))
        record_property("ways_open", len(doors.open_ways(found)))
        assert len(found) >= least
        assert doors.open_ways(found) == {}

    return told


@pytest.mark.services
def test_the_owner_gets_into_the_explorer(owner: Owner) -> None:
    assert owner.ask("GET", f"{owner.explorer}/_dash-layout").ok
    assert owner.ask("POST", owner.explorer + doors.CALLED, json=doors.CALL).ok


@pytest.mark.services
def test_without_a_login_every_way_is_closed(owner: Owner, tell: Tell) -> None:
    before = owner.state()
    tell(doors.tried_without_login(owner), 30)
    assert owner.state() == before


@pytest.mark.services
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_a_page_of_another_site_in_a_browser_finds_every_way_closed(
    owner: Owner, tell: Tell, tmp_path: Path
) -> None:
    tell(other_sites.tried_by_pages(owner, tmp_path), 50)


def test_a_home_is_closed_before_anything_lies_in_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new = own_folder(tmp_path / "new" / "home")
        (tmp_path / "old").mkdir(mode=0o777)
        old = own_folder(tmp_path / "old")
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (new, old)] == [0o700, 0o700]
    old.chmod(0o710)  # a group that may only pass through
    assert own_folder(old).stat().st_mode & 0o777 == 0o710
