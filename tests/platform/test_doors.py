"""Nobody but the owner gets into running servers: not by the ways of `doors` and `outsider`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tasks.runtime.servers.server_processes import MLFLOW, PREFECT, Services
from tasks.runtime.system.secret_files import login_token, own_folder
from tests.browsing import CHROMIUM
from tests.platform import doors, other_sites, outsider
from tests.platform.doors import Found, Owner
from tests.platform.explorer_page import explorer_of
from tests.platform.outsider import Target

Tell = Callable[[Found, int], None]


@pytest.fixture(scope="module")
def owner(started_servers: Services) -> Owner:
    addresses = started_servers.addresses
    owner = Owner(addresses[PREFECT].url, addresses[MLFLOW].url, login_token(started_servers.home))
    owner.keep_artifact()
    return owner


@pytest.fixture(scope="module")
def target(started_servers: Services, owner: Owner) -> Iterator[Target]:
    processes = [address.pid for address in started_servers.addresses.values()]
    with explorer_of(started_servers.home) as (explorer, process):
        yield doors.target_of(owner, started_servers.home, [*processes, process], explorer)


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
def test_the_owner_gets_into_the_explorer(owner: Owner, target: Target) -> None:
    page = f"http://{target.explorer}"
    assert owner.ask("GET", f"{page}/_dash-layout").ok
    assert owner.ask("POST", page + outsider.CALLED, json=outsider.CALL).ok


@pytest.mark.services
def test_another_user_finds_every_way_closed(owner: Owner, target: Target, tell: Tell) -> None:
    before = owner.state()
    tell(doors.tried_by_another_user(target), 30)
    assert owner.state() == before


@pytest.mark.services
def test_a_page_of_another_site_finds_every_way_closed(
    owner: Owner, target: Target, tell: Tell
) -> None:
    before = owner.state()
    tell(doors.tried_by_pages(owner, target), 30)
    assert owner.state() == before


@pytest.mark.services
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_a_page_of_another_site_in_a_browser_finds_every_way_closed(
    owner: Owner, target: Target, tell: Tell, tmp_path: Path
) -> None:
    tell(other_sites.tried_by_pages(owner, target, tmp_path), 50)


@pytest.mark.services
def test_strangers_at_the_ports_keep_nobody_waiting(owner: Owner, tell: Tell) -> None:
    ports = [urlsplit(url).port or 0 for url in (owner.prefect, owner.mlflow)]
    tell(doors.tried_by_strangers(owner, ports), 1)


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
