"""Every way of reading gives the same images; what goes wrong names shard and sample, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import psutil
import pytest
import torch

from scalestudy.data.load import workers
from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.loader import Loader
from scalestudy.data.load.sampler import batches
from scalestudy.errors import UserError
from scalestudy.spec import run
from tests.integration.processes import wait_until
from tests.unit.data import nginx
from tests.unit.data.conftest import Prepared

JPEG = {"source": "synthetic_jpeg", "samples": 40, "width": 96, "height": 64, "mean_kib": 3.0}
FORMS = {
    "files": JPEG,
    "tar": {**JPEG, "shard": {"format": "tar", "mib": 0.03125}},
    "lmdb": {**JPEG, "shard": {"format": "lmdb"}},
    "raw": {**JPEG, "preprocess": "raw", "resize": 64},
    "raw shards": {**JPEG, "preprocess": "raw", "resize": 64, "shard": {"format": "raw", "mib": 0.1}},
    "tensors": {"source": "digits", "scale": 0.0279},
}
BY_PROCESSES: dict[str, dict[str, Any]] = {
    "tar": {"mode": "memory", "storage": {"latency_ms": 0.1}},
    "lmdb": {"mode": "database"},
    "tensors": {},
}
"""A process reads as a thread does, and starting one takes a second: one way for each reader."""


def spec(**options: Any) -> run.Loader:
    usual = {"workers": 2, "augment": "crop_flip", "size": 32}
    return run.Loader.model_validate_json(json.dumps({**usual, **options}))


def shown(path: Path, **options: Any) -> dict[int, torch.Tensor]:
    """Every image that a loader shows, by sample."""
    loader = spec(**options)
    data = open_dataset(path, "train", loader)
    found: dict[int, torch.Tensor] = {}
    with Loader(data, plan(data), loader, seed=3) as batches_made:
        for (_, indices), (x, y) in zip(plan(data), batches_made, strict=True):
            assert len(x) == len(y) == len(indices)
            found.update(zip(indices.tolist(), x.clone(), strict=True))
    return found


def plan(data: Dataset, batch: int = 8, epoch: int = 0) -> list[tuple[int, np.ndarray]]:
    return [(epoch, indices) for indices in batches(data.samples, batch, 0, 1, 0, epoch, stream=data.stream)]


def equal(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[sample], other[sample]) for sample in one)


def of_a_loader() -> set[Any]:
    """The processes that this one has started and has not seen the end of, and the threads of loaders."""
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith("loader")}
    return {*psutil.Process().children(), *threads}


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    others = of_a_loader()  # a scheduler that another module's tests brought up stays to the end
    yield
    # A stream's threads finish the request that they are at.
    assert wait_until(lambda: not of_a_loader() - others, 3)


@pytest.mark.parametrize("form", FORMS)
def test_each_mode_and_kind_of_worker_shows_the_same_pictures(form: str, prepared: Prepared) -> None:
    path, _ = prepared(**FORMS[form])
    options = {"size": 8, "augment": "flip"} if form == "tensors" else {}  # without what processes import torch for
    first = shown(path, workers=0, **options)
    assert len(first) == 40 and equal(first, shown(path, workers=3, **options))
    assert equal(first, shown(path, mode="memory", **options))
    if form in BY_PROCESSES:
        assert equal(first, shown(path, kind="processes", **options, **BY_PROCESSES[form]))
    if form not in ("lmdb", "tensors"):
        assert equal(first, shown(path, mode="stream", shuffle_buffer=7, workers=3))
    nothing_read = shown(path, mode="synthetic", **options)
    assert nothing_read.keys() == first.keys() and not equal(first, nothing_read)


@pytest.mark.timeout(60)
def test_a_worker_process_and_its_loader_never_wait_for_each_other_to_read(prepared: Prepared) -> None:
    """Of large batches of small samples, indices and labels are more than the kernel holds between two processes."""
    path, _ = prepared(source="synthetic", samples=1 << 18, shape=[1], classes=1000)
    loader = spec(kind="processes", workers=1, prefetch=6, size=None, augment="none")
    data, order = open_dataset(path, "train", loader), [(0, np.arange(1 << 15) + (k << 15)) for k in range(8)]
    with Loader(data, order, loader, seed=0) as made:
        labels = torch.cat([y.clone() for _, y in made])
    alone = data.batch(np.arange(1 << 18), size=None, augment="none", seed=0, epoch=0)[1]
    assert torch.equal(labels, alone)


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("files", {"mode": "shards"}, "cannot be read in mode `shards`"),
        ("lmdb", {"origin": "/x"}, "only where it lies"),
    ],
)
def test_a_way_of_reading_that_a_form_does_not_have_is_an_error(
    form: str, options: dict[str, str], message: str, prepared: Prepared
) -> None:
    with pytest.raises(UserError, match=message):
        open_dataset(prepared(**FORMS[form])[0], "train", spec(**options))


# Going on in the middle


@pytest.mark.parametrize("mode", ["shards", "stream"])
def test_a_plan_that_begins_later_resumes_at_that_sample(mode: str, prepared: Prepared) -> None:
    path, _ = prepared(**FORMS["tar"])
    options = {"mode": mode, "shuffle_buffer": 9}
    data = open_dataset(path, "train", spec(**options))
    order = plan(data) + plan(data, epoch=1)
    whole, rest = [], []
    with Loader(data, order, spec(**options, workers=3), seed=0) as made:
        whole = [x.clone() for x, _ in made]
    with Loader(data, order[3:], spec(**options, workers=1), seed=0) as made:
        rest = [x.clone() for x, _ in made]
    assert len(rest) == 7
    assert all(torch.equal(one, other) for one, other in zip(whole[3:], rest, strict=True))


def test_no_more_batches_are_made_ahead_than_asked_for(prepared: Prepared) -> None:
    path, _ = prepared(**FORMS["files"])
    loader, ahead = spec(workers=2, prefetch=3), 7  # the one in use, and 2 x 3
    data = open_dataset(path, "train", loader)
    with Loader(data, plan(data, batch=1), loader, seed=0, slow_decode_s=0.001) as made:
        next(iter(made))
        assert wait_until(lambda: made.slow_decode >= ahead, 30)
        time.sleep(0.1)
        assert made.slow_decode == ahead


def test_a_worker_holds_one_coded_image_of_a_slower_storage(prepared: Prepared) -> None:
    path, manifest = prepared(**{**JPEG, "preprocess": "raw", "resize": 256})
    data = open_dataset(path, "train", spec(storage={"latency_ms": 0.001}))
    data.batch(np.arange(2), size=32, augment="none", seed=0, epoch=0)  # imports
    tracemalloc.start()
    try:
        data.batch(np.arange(40), size=32, augment="none", seed=0, epoch=0)
        assert tracemalloc.get_traced_memory()[1] < 3 * manifest.train.bytes / 40
    finally:
        tracemalloc.stop()


# Over HTTP


@pytest.mark.skipif(nginx.program() is None, reason="nginx is not installed")
@pytest.mark.parametrize(("form", "mode"), [("tar", "stream"), ("files", "file"), ("raw", "stream")])
def test_data_comes_straight_from_nginx(form: str, mode: str, prepared: Prepared, tmp_path: Path) -> None:
    path, facts = prepared(**FORMS[form])
    local = shown(path, workers=0)
    with nginx.serving(tmp_path, tmp_path / "nginx") as at:
        assert equal(local, shown(path, mode=mode, origin=f"{at}/{path.parent.relative_to(tmp_path)}/{facts.bulk}"))


@pytest.mark.timeout(60)
@pytest.mark.skipif(nginx.program() is None, reason="nginx is not installed")
@pytest.mark.parametrize("mode", ["stream", "shards"])
def test_a_server_that_goes_away_is_an_error_with_shard_and_sample(
    mode: str, prepared: Prepared, tmp_path: Path
) -> None:
    path, facts = prepared(**FORMS["tar"])
    with nginx.serving(tmp_path, tmp_path / "nginx") as at:
        origin = f"{at}/{path.parent.relative_to(tmp_path)}/{facts.bulk}"
    message = r"127.0.0.1:\d+/.*/train-\d+.tar: sample \d+ \(bytes .* the server does not.*Connection ?refused"
    with pytest.raises(UserError, match=message):
        shown(path, mode=mode, origin=origin)


# A slower storage


def test_an_emulated_storage_has_the_stated_rate_for_all_workers_together(prepared: Prepared) -> None:
    path, manifest = prepared(**FORMS["tar"])
    size = manifest.train.bytes
    for kind in ("threads", "processes"):
        begin = time.monotonic()
        shown(path, kind=kind, storage={"mib_per_s": size / 2**20 / 0.6})
        assert time.monotonic() - begin > 0.59


# What goes wrong


def changed(file: Path) -> None:
    contents = bytearray(file.read_bytes())
    half = len(contents) // 2
    contents[half : half + 40] = b"\xff\xd3" * 20  # markers where there are none
    file.write_bytes(contents)


def without_a_record(file: Path) -> None:
    with (
        lmdb.open(str(file.parent), map_size=1 << 26) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.delete(b"%09d" % 3)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_of_a_worker_is_raised_where_its_batch_is_due(workers: int, prepared: Prepared) -> None:
    path, _ = prepared(**FORMS["files"])
    loader, seen = spec(workers=workers), 0
    data = open_dataset(path, "train", loader)
    order = plan(data)
    data.files[order[2][1][0]].write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"), Loader(data, order, loader, seed=0) as made:
        for _ in made:
            seen += 1
    assert seen == 2


RANGE = r"sample \d+ \(bytes \d+ to \d+\) cannot be read"
DAMAGES: dict[str, tuple[str, str, Callable[[Path], object], str]] = {
    "a missing shard": ("tar", "threads", Path.unlink, f"{RANGE}: .*No such file"),
    "a shard that was cut": ("raw shards", "processes", lambda file: os.truncate(file, 700), RANGE),
    "a picture with other bytes": (
        "files",
        "threads",
        changed,
        r"sample \d+ cannot be read: it is damaged: its checksum",
    ),
    "a database without a record": ("lmdb", "threads", without_a_record, r"\(record 000000003\) .*: .*no record"),
    "a database that was cut": ("lmdb", "threads", lambda file: os.truncate(file, 99), "the database cannot be opened"),
    "arrays that were cut": ("tensors", "threads", lambda file: os.truncate(file, 99), "prepared data cannot be read"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_data_is_an_error_with_file_place_and_sample(name: str, prepared: Prepared) -> None:
    form, kind, damage, message = DAMAGES[name]
    path, _ = prepared(**FORMS[form])
    file = open_dataset(path, "train").files[-1]
    damage(file)
    where = file.parent if form == "lmdb" else file
    with pytest.raises(UserError, match=f"{where}: .*{message}"):
        shown(path, kind=kind)


@pytest.mark.timeout(60)
def test_a_worker_that_is_killed_is_an_error_with_its_signal(prepared: Prepared) -> None:
    path, _ = prepared(**FORMS["tar"])
    loader = spec(kind="processes", workers=1)
    data, others = open_dataset(path, "train", loader), of_a_loader()
    with (
        pytest.raises(UserError, match=r"worker 0 \(process \d+\) was killed by SIGKILL at .* samples \d+, \d+"),
        Loader(data, plan(data, batch=2), loader, seed=0) as made,
    ):
        for _ in made:
            worker, *_ = wait_until(lambda: [one for one in psutil.Process().children() if one not in others], 10)
            worker.kill()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_worker_that_hangs_in_a_read_is_reported_and_then_an_error(
    kind: str, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("SAY_AFTER_S", 1), ("MAX_WAIT_S", 2), ("END_S", 0.2)):
        monkeypatch.setattr(workers, name, value)
    others = of_a_loader()
    path, _ = prepared(**FORMS["files"])
    loader = spec(kind=kind, workers=1)
    data = open_dataset(path, "train", loader)
    file = data.files[9]
    file.unlink()
    os.mkfifo(file)  # opening it waits until somebody writes
    with (
        pytest.raises(UserError, match=r"batch of epoch 0 with samples 8, 9, 10, 11 did not come within 2 s"),
        Loader(data, [(0, np.arange(8, 12))], loader, seed=0) as made,
    ):
        list(made)
    assert "waiting for the batch of epoch 0 with samples 8, 9, 10, 11, for 1 s now" in capsys.readouterr().err

    def let_go() -> bool:
        # Not once: what the kernel cannot read is opened once more, for its error. OSError: nobody reads now.
        with contextlib.suppress(OSError):
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
        return not of_a_loader() - others

    assert wait_until(let_go, 5)


ENDS = """
import os, signal, sys
import numpy as np, psutil
from scalestudy.data.load import workers
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.load.loader import Loader
from scalestudy.spec import run
data = open_dataset(sys.argv[1], "train", spec := run.Loader(workers=2, size=32))
if (failing := os.fork()) == 0:
    workers.END_S = 0.2
    with Loader(data, [(0, np.arange(1)), (0, np.arange(1, 2))], spec, seed=0) as made:
        list(made)
assert os.waitstatus_to_exitcode(os.waitpid(failing, 0)[1]) == 1
spec = spec.model_copy(update={"kind": "processes"})
next(iter(made := Loader(data, [(0, np.arange(2, 10))] * 100, spec, seed=0)))
print(*(child.pid for child in psutil.Process().children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.timeout(60)
def test_a_process_ends_at_an_error_though_a_worker_hangs_and_worker_processes_end_when_it_is_killed(
    prepared: Prepared,
) -> None:
    path, _ = prepared(**FORMS["files"])
    files = open_dataset(path, "train").files
    files[0].write_bytes(b"damaged")
    files[1].unlink()
    os.mkfifo(files[1])
    command = [sys.executable, "-c", ENDS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert "sample 0 cannot be read" in done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert wait_until(lambda: not any(map(psutil.pid_exists, pids)), 10)
