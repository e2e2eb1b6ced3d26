"""How often the folder of the status files is listed, and that nothing in it is overlooked."""

from __future__ import annotations

from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.observe import Listing
from snakemake_executor_plugin_multinode.status_files import StatusFiles
from test_monitor import StillClock


class StampedFiles(StatusFiles):
    """Status files of a thousand jobs on a disk whose time stamps a test gives; nothing is written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.there = {f"job{number}.{suffix}" for number in range(1000) for suffix in ("token", "began")}
        self.stamp_ns = 1

    def names(self) -> set[str]:
        return set(self.there)

    def changed_ns(self) -> int:
        return self.stamp_ns


@pytest.fixture
def files(tmp_path: Path) -> StampedFiles:
    return StampedFiles(tmp_path)


def looks(listing: Listing, clock: StillClock, seconds: float) -> set[str]:
    names: set[str] = set()
    for _ in range(int(seconds)):
        clock.s += 1
        names = listing.names()
    return names


def test_a_thousand_jobs_that_run_are_listed_with_each_query_and_not_each_second(files: StampedFiles) -> None:
    clock = StillClock()
    listing = Listing(files, 10.0, clock)
    looks(listing, clock, 60)
    assert listing.listings <= 8


def test_a_file_that_came_within_the_same_tick_as_the_last_listing_is_seen_at_the_next_look(
    files: StampedFiles,
) -> None:
    clock = StillClock()
    listing = Listing(files, 1000.0, clock)
    looks(listing, clock, 30)
    files.stamp_ns = 2
    while listing.listings < 3:  # until it has seen the new stamp
        looks(listing, clock, 1)
    files.there.add("job7.ended")
    assert "job7.ended" in looks(listing, clock, 3)


def test_real_status_files_are_seen_as_they_come(tmp_path: Path) -> None:
    clock, files = StillClock(), StatusFiles(tmp_path)
    listing = Listing(files, 10.0, clock)
    for number in range(20):
        (tmp_path / f"job{number}.ended").write_text("")
        assert f"job{number}.ended" in looks(listing, clock, 11)
