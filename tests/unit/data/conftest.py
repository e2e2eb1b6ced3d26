"""Specs, prepared data and small folders of images for the tests of scalestudy.data."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter

from scalestudy.data.catalogue import AnyData
from scalestudy.data.manifest import Manifest
from scalestudy.data.prepare import datasets
from scalestudy.data.prepare.datasets import prepare
from scalestudy.spec.config import Site
from scalestudy.spec.run import Data

Prepared = Callable[..., tuple[Path, Manifest]]


def dataset_spec(**options: Any) -> AnyData:
    return TypeAdapter(Data).validate_json(json.dumps(options))


def photo(width: int, height: int, form: str = "JPEG", mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height // 4, width // 4, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize((width, height)).convert(mode).save(stream, form)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def nowhere_to_fetch_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SCALESTUDY_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admits data of one class, which is enough for tests of images."""
    monkeypatch.setattr(datasets, "refuse_unlearnable", lambda *_: None)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A real disk of this size in a new folder."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """Prepares a spec given by its keys; returns the manifest's path and the manifest."""

    def make(name: str = "data", site: Site | None = None, **options: Any) -> tuple[Path, Manifest]:
        path = tmp_path / name / "manifest.json"
        return path, prepare(dataset_spec(**options), path, None, site or Site())

    return make


@pytest.fixture
def picture_folder(tmp_path: Path) -> Path:
    """Two classes, 3 and 5 training images of which one is grey, one CMYK and one PNG; 2 held out."""
    root = tmp_path / "pictures"
    names = {"train/cat": 3, "train/dog": 5, "val/cat": 1, "val/dog": 1}
    for folder, count in names.items():
        (root / folder).mkdir(parents=True)
        for number in range(count):
            (root / folder / f"{number}.jpg").write_bytes(photo(80 + 8 * number, 64))
    (root / "train/dog/0.jpg").write_bytes(photo(80, 64, mode="L"))
    (root / "train/dog/1.jpg").write_bytes(photo(80, 64, mode="CMYK"))
    (root / "train/dog/2.jpg").unlink()
    (root / "train/dog/2.PNG").write_bytes(photo(80, 64, "PNG"))
    return root
