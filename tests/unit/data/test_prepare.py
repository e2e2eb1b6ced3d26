from __future__ import annotations

import contextlib
import errno
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import numpy as np
import pytest

from scalestudy.data.index import check_labels
from scalestudy.data.load.dataset import open_dataset
from scalestudy.data.manifest import read_manifest
from scalestudy.data.prepare import datasets as module
from scalestudy.data.prepare import lmdb_store, parts, shard, write
from scalestudy.data.prepare.datasets import ensure, prepare
from scalestudy.data.prepare.work import working_folder
from scalestudy.data.progress import Progress
from scalestudy.errors import Skipped, UserError
from scalestudy.spec.config import Site
from tests.unit.data.conftest import Prepared, dataset_spec

JPEG = {"source": "synthetic_jpeg", "samples": 30, "width": 64, "height": 48, "mean_kib": 2.0}


@pytest.mark.parametrize("preprocess", ["none", "resized", "raw"])
def test_a_whole_bulk_is_not_made_again(preprocess: str, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    path, manifest = prepared(**JPEG, preprocess=preprocess)
    monkeypatch.setattr(module, "_made", None)
    path.unlink()
    assert prepared(**JPEG, preprocess=preprocess) == (path, manifest)
    assert ensure(path) == manifest


def test_a_bulk_elsewhere_is_named_by_its_absolute_path_and_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, scratch = dataset_spec(source="digits"), tmp_path / "scratch"
    first = prepare(spec, tmp_path / "a/manifest.json", scratch, Site())
    monkeypatch.setattr(module, "_made", None)
    second = prepare(spec, tmp_path / "b/manifest.json", scratch, Site())
    assert first == second and first.bulk == str(scratch / first.id)
    assert open_dataset(tmp_path / "b/manifest.json", "train").samples == 1437


@pytest.mark.parametrize("preprocess", ["none", "raw"])
def test_a_bulk_that_lost_files_is_made_again_and_the_manifest_stays(preprocess: str, prepared: Prepared) -> None:
    path, manifest = prepared(**JPEG, preprocess=preprocess)
    before = path.stat().st_mtime_ns
    victim = open_dataset(path, "train").files[0]
    contents = victim.read_bytes()
    victim.unlink()
    assert ensure(path) == manifest
    assert victim.read_bytes() == contents
    shutil.rmtree(path.parent / "bulk")
    ensure(path)
    assert victim.read_bytes() == contents and path.stat().st_mtime_ns == before


def test_purged_data_that_comes_out_differently_is_an_error(picture_folder: Path, prepared: Prepared) -> None:
    path, _ = prepared(source="image_folder", root=str(picture_folder), preprocess="resized")
    shutil.rmtree(path.parent / "bulk")
    (picture_folder / "train/cat/0.jpg").unlink()
    with pytest.raises(UserError, match="prepared from 10 files, and there are 9 now"):
        ensure(path)


def test_pictures_that_left_their_folder_are_missed(picture_folder: Path, prepared: Prepared) -> None:
    path, manifest = prepared(source="image_folder", root=str(picture_folder))
    assert ensure(path) == manifest
    shutil.rmtree(picture_folder)
    with pytest.raises(UserError, match="names a folder that is not there"):
        ensure(path)


def test_a_failure_leaves_neither_manifest_nor_bulk(
    tmp_path: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "write_index", lambda *_: exec("raise OSError('disk full')"))
    with pytest.raises(OSError, match="disk full"):
        prepared(**JPEG)
    assert not (tmp_path / "data/manifest.json").exists() and not (tmp_path / "data/bulk").exists()


@pytest.mark.slow
def test_a_killed_preparation_leaves_nothing_under_the_final_name_and_is_cleared_away(tmp_path: Path) -> None:
    script = (
        "import os, sys, json; from pathlib import Path\n"
        "from pydantic import TypeAdapter; from scalestudy.spec.run import Data; from scalestudy.spec.config import Site\n"
        "from scalestudy.data.prepare import write; from scalestudy.data.prepare.datasets import prepare\n"
        "write.write_index = lambda *_: os.kill(os.getpid(), 9)\n"
        "prepare(TypeAdapter(Data).validate_json(sys.argv[1]), Path(sys.argv[2]), None, Site())\n"
    )
    path = tmp_path / "data/manifest.json"
    done = subprocess.run([sys.executable, "-c", script, json.dumps(JPEG), str(path)], check=False)
    assert done.returncode == -9
    assert not path.exists() and not (path.parent / "bulk").exists()
    assert (path.parent / ".bulk.making-kept").is_dir()
    manifest = prepare(dataset_spec(**JPEG), path, None, Site())
    assert manifest.train.samples == 30
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".bulk.lock", "bulk", "manifest.json"]


def test_data_that_does_not_fit_on_the_disk_is_an_error_before_it_is_made(prepared: Prepared) -> None:
    with pytest.raises(UserError, match=r"the data takes about .* GB, and .* GB are free"):
        prepared(source="digits", scale="900 TB")


@pytest.mark.parametrize("form", ["files", "tar", "lmdb"])
def test_a_full_disk_is_reported_with_its_folder_and_the_next_attempt_resumes(
    form: str, prepared: Prepared, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise lmdb.Error("mdb_txn_commit: No space left on device") if form == "lmdb" else OSError(errno.ENOSPC, "full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*((lmdb_store, "database_key", full) if form == "lmdb" else (parts, "save", full)))
        with pytest.raises(UserError, match=r"the disk is full: .*\n.*free some space there") as raised:
            prepared(**JPEG, shard={"format": form})
    assert raised.value.where.startswith(str(tmp_path / "data"))
    assert (tmp_path / "data/.bulk.making-kept").is_dir()
    assert prepared(**JPEG, shard={"format": form})[1].train.samples == 30
    assert sorted(file.name for file in (tmp_path / "data").iterdir()) == [".bulk.lock", "bulk", "manifest.json"]


def test_an_error_of_the_file_system_keeps_the_work(tmp_path: Path) -> None:
    work = tmp_path / "making"
    with pytest.raises(OSError), working_folder(work):
        (work / "hours.npy").touch()
        raise OSError(errno.ESTALE, "for a moment")
    assert (work / "hours.npy").exists()


@pytest.mark.parametrize("error", [None, UserError("wrong"), Skipped("absent")])
def test_success_and_an_error_in_the_request_leave_no_working_folder(error: Exception | None, tmp_path: Path) -> None:
    with contextlib.suppress(UserError, Skipped), working_folder(tmp_path / "making"):
        if error is not None:
            raise error
    assert list(tmp_path.iterdir()) == []


def test_another_number_of_labels_per_sample_than_classes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its `classes` is 14, but each sample has 3 labels"):
        check_labels(np.zeros((5, 3), np.float32), 14, tmp_path)
    with pytest.raises(UserError, match="the label -1"):
        check_labels(np.array([0, -1]), 2, tmp_path)


def test_size_and_stored_form_belong_together(prepared: Prepared) -> None:
    _, raw = prepared("raw", **JPEG, preprocess="raw", scale="2 MB")
    assert raw.train.samples == 10 and raw.train.bytes == 10 * 196608
    _, files = prepared("files", **JPEG, scale="100 KB")
    assert 80_000 < files.train.bytes < 120_000
    _, resized = prepared("resized", **JPEG, preprocess="resized", scale="200 KB")
    assert 160_000 < resized.train.bytes < 240_000 and (resized.width, resized.height) == (341, 256)


def test_the_digits_are_prepared_and_read_without_what_takes_seconds_to_import(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from scalestudy.commands.run import prepare\n"
        f"prepare(['--spec', '{{\"source\": \"digits\"}}', '--out', '{tmp_path}/manifest.json'], standalone_mode=False)\n"
        "print({'torch', 'sklearn', 'scipy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert read_manifest(tmp_path / "manifest.json").train.samples == 1437


def test_reading_a_manifest_preparing_data_and_starting_a_run_import_no_torch() -> None:
    modules = "scalestudy.data.manifest, scalestudy.data.prepare.datasets, scalestudy.launch.launch"
    script = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def keepsake(tmp_path: Path) -> Path:
    """A file of the user's in a folder of the user's."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    return folder / "thesis.tex"


@pytest.mark.parametrize("record", [None, "{}", "of another dataset"])
def test_a_folder_that_is_not_this_dataset_s_is_never_replaced(
    record: str | None, tmp_path: Path, prepared: Prepared
) -> None:
    _, manifest = prepared(source="digits")
    other, _ = prepared("other", **JPEG)
    scratch = tmp_path / "scratch" / manifest.id
    scratch.mkdir(parents=True)
    (scratch / "thesis.tex").write_text("years of work")
    if record is not None:
        (scratch / "manifest.json").write_text(other.read_text() if record.startswith("of") else record)
    with pytest.raises(UserError, match="it is left as it is"):
        prepare(dataset_spec(source="digits"), tmp_path / "third/manifest.json", scratch.parent, Site())
    assert (scratch / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["bulk", ".bulk.making-kept"])
def test_a_link_is_never_followed_to_what_it_replaces(name: str, tmp_path: Path) -> None:
    thesis = keepsake(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(thesis.parent)
    with pytest.raises(UserError, match="is a link"):
        prepare(dataset_spec(**JPEG), tmp_path / "data/manifest.json", None, Site())
    assert thesis.read_text() == "years of work"


@pytest.mark.parametrize("store", [shard.write_array, lmdb_store.write_database])
def test_threads_that_convert_have_ended_when_an_error_is_raised(store: Any, tmp_path: Path) -> None:
    """The traceback holds what the error went through, and with it whatever would end its threads when it is collected."""

    def convert(number: int) -> Any:
        raise UserError(f"image {number} cannot be read")

    writes = SimpleNamespace(one=lambda _number, made: made())
    places = (tmp_path, tmp_path) if store is lmdb_store.write_database else (tmp_path,)
    sizes = (8,) if store is shard.write_array else ()
    before = set(threading.enumerate())
    with pytest.raises(UserError, match="image 0 cannot be read") as raised:
        store(*places, "train", *sizes, np.zeros(500, np.int64), convert, lambda: writes, Progress("pictures", 500))
    assert set(threading.enumerate()) <= before
    assert raised.tb is not None
