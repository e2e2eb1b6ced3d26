from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scalestudy.data import prepare as module
from scalestudy.data import store
from scalestudy.data.dataset import open_dataset
from scalestudy.data.manifest import read_manifest
from scalestudy.data.prepare import ensure, prepare
from scalestudy.errors import UserError
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
    with pytest.raises(UserError, match="made again it differs"):
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
    monkeypatch.setattr(store, "write_index", lambda *_: exec("raise OSError('disk full')"))
    with pytest.raises(OSError, match="disk full"):
        prepared(**JPEG)
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".bulk.lock"]


def test_a_killed_preparation_leaves_nothing_under_the_final_name_and_is_cleared_away(tmp_path: Path) -> None:
    script = (
        "import os, sys, json; from pathlib import Path\n"
        "from pydantic import TypeAdapter; from scalestudy.spec.run import Data; from scalestudy.spec.config import Site\n"
        "from scalestudy.data import store; from scalestudy.data.prepare import prepare\n"
        "store.write_index = lambda *_: os.kill(os.getpid(), 9)\n"
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


def test_size_and_stored_form_belong_together(prepared: Prepared) -> None:
    _, raw = prepared("raw", **JPEG, preprocess="raw", scale="2 MB")
    assert raw.train.samples == 10 and raw.train.bytes == 10 * 196608
    _, files = prepared("files", **JPEG, scale="100 KB")
    assert 80_000 < files.train.bytes < 120_000
    _, resized = prepared("resized", **JPEG, preprocess="resized", scale="200 KB")
    assert 160_000 < resized.train.bytes < 240_000 and (resized.width, resized.height) == (341, 256)


def test_a_manifest_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"id": "x"}')
    with pytest.raises(UserError, match="is no manifest"):
        read_manifest(tmp_path / "manifest.json")


def test_reading_a_manifest_imports_no_torch() -> None:
    script = "import sys, scalestudy.data.manifest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
