"""Homes stay as they are found, strangers stay out, and damage is found and mended alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import figures_of_homes as figures

pytestmark = pytest.mark.faults


def test_a_home_that_others_may_enter_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    assert figures.homes_left_as_found(tmp_path) == {"homes_left_as_found": True}


def test_what_strangers_prepared_is_refused(tmp_path: Path) -> None:
    assert figures.strangers_refused(tmp_path) == {"strangers_refused": True}


def test_a_flipped_bit_is_found_in_every_file(tmp_path: Path) -> None:
    found = figures.verify_finds(tmp_path)
    assert found["verify_finds"] == 1.0 and found["verify_files"] > 15


def test_only_what_is_needed_is_computed_again(tmp_path: Path) -> None:
    assert figures.recomputed_beyond_need(tmp_path) == {"recomputed_beyond_need": 0}


def test_faults_on_slurm_are_counted_by_what_their_tests_recorded() -> None:
    good = {"slurm_fault": "requeued", "end": "passed", "resume_identical": "true"}
    bad = good | {"end": "failure", "resume_identical": "false"}
    other = {"fault": "another", "end": "passed", "resume_identical": "true"}
    counted = [figures.of_slurm(tests) for tests in ([good, good, other], [good, bad], [other])]
    assert [tuple(found.values()) for found in counted] == [(2, True), (1, False), ()]
