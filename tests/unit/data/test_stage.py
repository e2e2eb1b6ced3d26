"""Copies of prepared data on a node's own disk: from folders, nginx and an object store; kills, locks, room."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import bulk_folder
from scalestudy.data.stage import Share, Staged, StageOptions, cache, copying, staged
from scalestudy.data.stage.file_set import own_samples
from scalestudy.errors import UserError
from scalestudy.spec.config import Site
from tests.integration.processes import wait_until
from tests.unit.data import nginx
from tests.unit.data.conftest import Prepared, small_disk

JPEG = {"source": "synthetic_jpeg", "samples": 60, "width": 64, "height": 48, "mean_kib": 2}
TAR = {**JPEG, "shard": {"format": "tar", "mib": 0.03125}}
FORMS = {
    "files": JPEG,
    "tar": TAR,
    "lmdb": {**JPEG, "shard": {"format": "lmdb"}},
    "pixels": {**JPEG, "preprocess": "raw", "resize": 48},
    "tensors": {"source": "digits"},
}
HTTP = pytest.mark.skipif(nginx.program() is None, reason="nginx is not installed")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(scratch=str(tmp_path / "scratch"))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    with nginx.serving(tmp_path, tmp_path / "nginx") as address:
        yield address


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (".jpg", ".tar", ".npy", ".mdb") and path.name != "lock.mdb"
    }


def pixels(manifest: Path) -> np.ndarray:
    data = open_dataset(manifest, "train")
    return data.batch(np.arange(8), size=None, augment="none", seed=0, epoch=0)[0].numpy()


@pytest.mark.parametrize("form", FORMS)
def test_copies_hold_what_the_data_holds_and_are_read_in_its_place(form: str, prepared: Prepared, site: Site) -> None:
    manifest, facts = prepared(**FORMS[form])
    copies = staged(manifest, StageOptions(), Share(), site)
    assert contents(copies.manifest.parent) == contents(bulk_folder(manifest, facts))
    assert copies.copied_bytes == copies.bytes == sum(map(len, contents(copies.manifest.parent).values()))
    before = pixels(manifest)
    (manifest.parent / "bulk").rename(manifest.parent / "gone")
    assert (pixels(copies.manifest) == before).all()


def test_whole_copies_are_used_again_and_what_is_lost_of_them_is_copied_again(prepared: Prepared, site: Site) -> None:
    manifest, _ = prepared(**TAR)
    first = staged(manifest, StageOptions(), Share(), site)
    again = staged(manifest, StageOptions(), Share(), site)
    assert first.copied_bytes > 0 and again.copied_bytes == 0
    lost = first.manifest.parent / "train-000001.tar"
    size, index = lost.stat().st_size, (lost.parent / "index.npz").open("rb")  # as another run has it mapped
    record = first.manifest.parent.with_name(f"{first.entry.name}.json")
    for age in (3600.0, -3600.0):  # long ago, and before the clock was set back
        lost.unlink()
        os.utime(record, (time.time() - age,) * 2)
        first.release()
        again.release()
        again = staged(manifest, StageOptions(), Share(), site)
        assert again.copied_bytes == size
        assert lost.stat().st_size == size
    with index:
        assert os.fstat(index.fileno()).st_nlink == 0


@HTTP
@pytest.mark.parametrize(("form", "origin"), [("files", "{}/data"), ("lmdb", "{}/data"), ("tar", "s3://data")])
def test_copies_come_by_range_requests_over_http_and_from_an_object_store_that_speaks_s3(
    form: str, origin: str, prepared: Prepared, site: Site, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "REQUEST_BYTES", 4096)
    # GetObject of S3 is a GET of /bucket/key: obstore's own client asks nginx, unsigned.
    for name, value in {"ENDPOINT_URL": served, "ALLOW_HTTP": "true", "SKIP_SIGNATURE": "true", "REGION": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    manifest, facts = prepared(**FORMS[form])
    copies = staged(manifest, StageOptions(origin=f"{origin.format(served)}/{facts.bulk}"), Share(), site)
    assert contents(copies.manifest.parent) == contents(bulk_folder(manifest, facts))


@HTTP
def test_a_server_that_lacks_a_file_is_named_and_a_later_attempt_resumes(
    prepared: Prepared, site: Site, served: str
) -> None:
    manifest, facts = prepared(**TAR)
    lost = bulk_folder(manifest, facts) / "train-000002.tar"
    lost.rename(lost.with_suffix(".away"))
    options = StageOptions(origin=f"{served}/data/{facts.bulk}", streams=1)
    with pytest.raises(UserError, match=r"train-000002\.tar"):
        staged(manifest, options, Share(), site)
    lost.with_suffix(".away").rename(lost)
    copies = staged(manifest, options, Share(), site)
    assert 0 < copies.copied_bytes < copies.bytes


@pytest.mark.parametrize(
    ("form", "cut", "why"), [("files", 0, "damaged"), ("tar", 0, "damaged"), ("tar", 9, "expected")]
)
def test_a_damaged_file_is_found_by_size_or_checksum(
    form: str, cut: int, why: str, prepared: Prepared, site: Site
) -> None:
    manifest, facts = prepared(**FORMS[form])
    victim = sorted((bulk_folder(manifest, facts)).rglob("*.jpg" if form == "files" else "train*.tar"))[1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data[: len(data) - cut])
    with pytest.raises(UserError, match=why) as raised:
        staged(manifest, StageOptions(), Share(), site)
    assert victim.name in str(raised.value)
    assert not list(Path(site.scratch or "").rglob("manifest.json"))


@pytest.mark.parametrize("form", ["files", "tar"])
def test_shares_hold_each_training_sample_once_and_all_held_out_data(form: str, prepared: Prepared, site: Site) -> None:
    (manifest, facts), nodes = prepared(**FORMS[form]), 3
    shares = [staged(manifest, StageOptions(), Share(node, nodes), site) for node in range(nodes)]
    samples = [own_samples(manifest, facts, Share(node, nodes)) for node in range(nodes)]
    assert sorted(np.concatenate(samples).tolist()) == list(range(60))
    everything = contents(bulk_folder(manifest, facts))
    held_out = {name for name in everything if name.startswith("test")}
    for copies, own in zip(shares, samples, strict=True):
        there = contents(copies.manifest.parent)
        assert there.items() <= everything.items() and held_out <= there.keys()
        data = open_dataset(copies.manifest, "train")
        data.batch(own, size=None, augment="none", seed=0, epoch=0)  # none of them is missing
        test = open_dataset(copies.manifest, "test")
        test.batch(np.arange(test.samples), size=None, augment="none", seed=0, epoch=0)
    assert sum(len(contents(copies.manifest.parent)) - len(held_out) for copies in shares) == len(
        everything.keys() - held_out
    )


# Room


def test_nothing_is_copied_where_there_is_no_room(prepared: Prepared, site: Site) -> None:
    manifest, _ = prepared(**TAR)
    small = site.model_copy(update={"staged_gib": 1e-5})
    with pytest.raises(UserError, match=r"the copies take .*; `staged_gib` allows"):
        staged(manifest, StageOptions(), Share(), small)
    assert not list(Path(site.scratch or "").rglob("*.tar"))
    with pytest.raises(UserError, match="names a variable that is not set in this job"):
        staged(manifest, StageOptions(), Share(), Site(scratch="$NO_SUCH_FOLDER"))


def test_the_longest_unused_copies_give_way_and_never_those_in_use(prepared: Prepared, site: Site) -> None:
    made = [prepared(name, **{**TAR, "samples": count})[0] for name, count in (("a", 61), ("b", 62), ("c", 63))]
    first, second = (staged(manifest, StageOptions(), Share(), site) for manifest in made[:2])
    for age, copies in ((200, first), (100, second)):
        long_ago = time.time() - age
        os.utime(copies.manifest.parent.with_name(f"{copies.entry.name}.json"), (long_ago, long_ago))
    limit = 2.2 * first.bytes / 2**30
    capped = site.model_copy(update={"staged_gib": limit})
    second.release()  # the first is the older one, and in use
    third = staged(made[2], StageOptions(), Share(), capped)
    assert first.manifest.exists() and not second.manifest.exists() and third.manifest.exists()
    with pytest.raises(UserError, match="runs are using"):
        staged(made[1], StageOptions(), Share(), capped)
    first.release()
    assert staged(made[1], StageOptions(), Share(), capped).manifest.exists()
    assert not first.manifest.exists()


def test_cleaning_leaves_what_is_in_use(prepared: Prepared, site: Site) -> None:
    used, free = (staged(prepared(n, **FORMS[n])[0], StageOptions(), Share(), site) for n in ("tar", "files"))
    free.release()
    assert cache.clean(cache.scratch_folder(site)) == ([free.entry.name], [used.entry.name])
    assert used.manifest.exists() and not free.manifest.exists()


def test_a_removal_that_is_interrupted_leaves_no_copies_that_pass_for_whole(
    prepared: Prepared, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, _ = prepared(**TAR)
    first = staged(manifest, StageOptions(), Share(), site)
    first.release()

    def interrupted(folder: Path, ignore_errors: bool) -> None:
        next(folder.glob("*.tar")).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(cache.shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.entry.remove()
    first.entry.let_go()
    assert staged(manifest, StageOptions(), Share(), site).copied_bytes > 0


# Several processes, and kills


def command(manifest: Path, site: Site, folder: Path, *more: str) -> subprocess.Popen[str]:
    (folder / "site.yaml").write_text(json.dumps({"scratch": site.scratch}))
    environment = {**os.environ, "SCALESTUDY_SITE": str(folder / "site.yaml")}
    words = [str(Path(sys.executable).parent / "scalestudy"), "stage", str(manifest), *more]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_shards(process: subprocess.Popen[str], root: Path, count: int) -> None:
    """Until so many are whole: each of the copying threads has one more under way."""
    least = count + StageOptions().streams
    assert wait_until(lambda: process.poll() is not None or len(list(root.glob("*/*.tar"))) >= least, 60)
    assert process.poll() is None, process.communicate()


def test_a_disk_that_fills_meanwhile_is_reported_with_the_copies_and_a_later_attempt_resumes(
    prepared: Prepared, site: Site, tmp_path: Path
) -> None:
    manifest, facts = prepared(**{**TAR, "samples": 200})
    with small_disk(tmp_path / "scratch", "8m") as disk:
        process = command(manifest, site, tmp_path, "--mib-per-s", "0.4")
        wait_for_shards(process, disk / f"scalestudy-staged-{os.getuid()}", 2)
        with suppress(OSError), open(disk / "filler", "wb", buffering=0) as filler:
            while filler.write(bytes(4096)):
                pass
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2 and f"scalestudy: {disk}/" in said and "Traceback" not in said, said
        assert "the disk is full: No space left on device" in said
        (disk / "filler").unlink()
        copies = staged(manifest, StageOptions(), Share(), site)
        assert 0 < copies.copied_bytes < copies.bytes
        assert contents(copies.manifest.parent) == contents(bulk_folder(manifest, facts))


def test_two_jobs_of_a_node_copy_once(prepared: Prepared, site: Site) -> None:
    manifest, _ = prepared(**TAR)
    found: list[Staged] = []
    threads = [
        threading.Thread(target=lambda: found.append(staged(manifest, StageOptions(mib_per_s=2.0), Share(), site)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(copies.copied_bytes > 0 for copies in found) == [False, False, True]


def test_what_was_whole_at_a_kill_is_not_copied_again(prepared: Prepared, site: Site, tmp_path: Path) -> None:
    manifest, facts = prepared(**{**TAR, "samples": 200})
    process = command(manifest, site, tmp_path, "--mib-per-s", "0.4", "--streams", "2")
    root = Path(site.scratch or "") / f"scalestudy-staged-{os.getuid()}"
    wait_for_shards(process, root, 4)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    whole = sum(path.stat().st_size for path in root.glob("*/*.tar"))
    copies = staged(manifest, StageOptions(), Share(), site)
    assert copies.copied_bytes == copies.bytes - whole
    assert contents(copies.manifest.parent) == contents(bulk_folder(manifest, facts))
