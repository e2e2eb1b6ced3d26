"""What preparing data is expected to take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scalestudy.cluster.ledger.used import read_ledger
from scalestudy.cluster.plan.preparation import expected
from scalestudy.cluster.resources import Planner
from scalestudy.data.manifest import Manifest, SplitInfo, write_manifest
from scalestudy.spec.base import parse
from scalestudy.spec.ids import dataset_id
from scalestudy.spec.layout import manifest_file
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec

ROOT = Path(__file__).resolve().parents[3]
MACHINE = Machine(nodes=4, devices_per_node=4, start_up_s=10)


pytestmark = pytest.mark.usefixtures("published_numbers")


def spec(**data: Any) -> RunSpec:
    found, problems = parse(RunSpec, {"data": {"source": "image_folder", **data}})
    assert found is not None, problems
    return found


def prepared(of: RunSpec, samples: int, seconds: float, *, in_a_job: bool = True) -> None:
    """A dataset of this form, and the job that made it."""
    identity = dataset_id(of.data)
    manifest_file(identity).parent.mkdir(parents=True)
    split = SplitInfo(samples, samples)
    write_manifest(manifest_file(identity), Manifest(identity, "ready", of.data.plain(), train=split, seconds=seconds))
    if in_a_job:
        Path(".scalestudy").mkdir(exist_ok=True)
        event = {"name": f"d.{identity}", "job": f"dataset {identity}", "event": "ended", "used_s": seconds + 9}
        with open(".scalestudy/jobs.jsonl", "a") as ledger:
            ledger.write(json.dumps(event) + "\n")


def test_files_used_where_they_lie_are_faster_than_those_that_are_written() -> None:
    indexed = expected(spec(), (1.0, 2.0), [])
    assert (round(indexed.low_s), round(indexed.high_s), indexed.kind) == (14, 6658, "rates")
    packed = expected(spec(shard={"format": "tar"}), (1.0, 2.0), [])
    assert (round(packed.low_s), round(packed.high_s), packed.kind) == (188, 26625, "rates")


def test_data_that_is_made_while_it_is_read_takes_the_start_of_a_job() -> None:
    made = expected(spec(source="synthetic"), (1.0, 2.0), [])
    assert (made.low_s, made.high_s) == (1.0, 2.0)


def test_data_of_unknown_size_is_unknown_and_requests_a_short_job(tmp_path: Path) -> None:
    (tmp_path / "config/reference").unlink()
    asked, estimate = Planner("nowhere", MACHINE).of_dataset(spec())
    assert (estimate.known, asked.runtime) == (False, 30)


def test_datasets_of_the_same_form_that_jobs_have_prepared_say_what_the_next_one_takes() -> None:
    packed = {"shard": {"format": "tar"}}
    prepared(spec(scale=0.1, **packed), 100_000, 500.0)  # 200 per second
    prepared(spec(scale=0.2, **packed), 200_000, 500.0)  # 400 per second
    prepared(spec(scale=0.3), 300_000, 1.0)  # another form
    prepared(spec(scale=0.4, **packed), 400_000, 1.0, in_a_job=False)  # on another host
    found = expected(spec(**packed), (1.0, 2.0), read_ledger())
    assert (round(found.low_s), round(found.high_s), found.kind) == (1665, 13314, "neighbours")
    asked, estimate = Planner("nowhere", MACHINE).of_dataset(spec(**packed))
    assert (round(estimate.high_s), asked.runtime) == (13322, 228)
