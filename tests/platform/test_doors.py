"""Nobody but the owner gets into running servers: no program without a login, no other site."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dynolab.errors import ConfigError
from tasks.runtime.servers.service import MLFLOW, PREFECT
from tasks.runtime.servers.services import Services
from tasks.runtime.system.secret_files import login_token, own_folder, signing_key
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


def test_a_home_is_made_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new = own_folder(tmp_path / "new" / "home")
    finally:
        os.umask(before)
    assert new.stat().st_mode & 0o777 == 0o700
    assert own_folder(new) == new


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o711 | 0o20, 0o1777])
def test_a_folder_that_others_may_enter_is_no_home_and_keeps_its_mode(
    mode: int, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:o}\); name a folder .* chmod 700"):
        own_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
    tmp_path.chmod(0o710)  # a group that may only pass through
    assert own_folder(tmp_path).stat().st_mode & 0o777 == 0o710


@pytest.mark.parametrize("file", ["token", "key"])
def test_a_secret_that_others_may_read_or_have_put_there_is_refused(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / file
    secret.write_text("ab" * 32)
    read = {"token": login_token, "key": partial(signing_key, environment={})}[file]
    for mode in (0o644, 0o640, 0o602):
        secret.chmod(mode)
        with pytest.raises(
            ConfigError, match=rf"mode {mode:o}\); delete it, .* chmod 600"
        ) as caught:
            read(tmp_path)
        assert "ab" * 32 not in str(caught.value)
    secret.chmod(0o600)
    assert read(tmp_path) in ("ab" * 32, bytes.fromhex("ab" * 32))
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(ConfigError, match=r"not a file of this user; delete it"):
        read(tmp_path)
    with pytest.raises(
        ConfigError, match=r"DYNOLAB_HOME.*another user; name a folder that does not"
    ):
        own_folder(tmp_path)
