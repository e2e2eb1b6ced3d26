"""Fashion-MNIST (Xiao, Rasul, Vollgraf: arXiv 1708.07747) from its four IDX files, found or fetched."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.catalogue import FashionMNIST
from scalestudy.data.manifest import Split
from scalestudy.data.sources import Arrays
from scalestudy.errors import UserError
from scalestudy.site_fault import lacking, site_file
from scalestudy.spec.config import Site

IMAGES: dict[Split, str] = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
LABELS: dict[Split, str] = {"train": "train-labels-idx1-ubyte", "test": "t10k-labels-idx1-ubyte"}
FILES = (*IMAGES.values(), *LABELS.values())

# SHA-256 of the files unpacked, because Debian packs them anew (other .gz, same contents). They are what the published
# .gz hold whose MD5 torchvision lists: 8d4fb7e6c68d591d4c3dfef9ec88bf0d, bef4ecab320f06d8554ea6380940ec79,
# 25c81989df183df01b3e8a0aad5dffbe, bb300cfdad3c16e7a12a480ee83cd310 (in the order of FILES).
CONTENTS = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
PACKAGE = "dataset-fashion-mnist"
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package puts the files."""
ADDRESSES = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)
LAYOUTS = ("", "raw", "FashionMNIST/raw", "data/fashion")
"""Where below a named folder the files may lie: as published, as torchvision stores them, as its repository does."""
FETCH_S = 90.0
"""Limit of all attempts to fetch together, seconds."""
DEBIAN_S = 60.0
"""Limit of the attempt through apt, seconds."""
WANTED = f"{', '.join(f'{name}[.gz]' for name in FILES)} (31 MB as .gz)"


def provide(spec: FashionMNIST, site: Site) -> Arrays:
    """60,000 samples for training and 10,000 held out, uint8 [samples, 1, 28, 28], 10 classes."""
    for named, key in ((spec.root, "data.root"), (site.data_roots.get("fashion_mnist"), "data_roots.fashion_mnist")):
        if named is not None:
            return _read(_named_folder(Path(named), key))
    cache = cache_folder()
    for folder in (PACKAGED, cache):
        if _holds(folder):
            return _read(folder)
    _fetch(cache)
    return _read(cache)


def cache_folder() -> Path:
    """Where fetched files are kept for the next time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scalestudy" / "fashion_mnist"


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An IDX file of bytes with so many dimensions, plain or .gz; UserError where it is damaged or something else."""
    return _parsed(_unpacked(path), path, dimensions)


def _parsed(data: bytes, path: Path, dimensions: int) -> NDArray[np.uint8]:
    shape = tuple(np.frombuffer(data[4 : 4 + 4 * dimensions], ">u4").tolist())
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) != 4 + 4 * dimensions + int(np.prod(shape)):
        raise UserError(
            f"is damaged, or is not an IDX file of bytes in {dimensions} dimensions", str(path), "copy it again"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _read(folder: Path) -> Arrays:
    return Arrays(
        {split: (_checked(folder, IMAGES[split], 3)[:, None], _labels(folder, split)) for split in IMAGES}, 10
    )


def _labels(folder: Path, split: Split) -> NDArray[np.int64]:
    return _checked(folder, LABELS[split], 1).astype(np.int64)


def _checked(folder: Path, name: str, dimensions: int) -> NDArray[np.uint8]:
    path = _file(folder, name)
    assert path is not None
    data = _unpacked(path)
    if hashlib.sha256(data).hexdigest() != CONTENTS[name]:
        raise UserError("is not Fashion-MNIST's file of that name, or is damaged", str(path), "copy it again")
    return _parsed(data, path, dimensions)


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot be read: {error}", str(path), "copy it again") from None


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _holds(folder: Path) -> bool:
    return all(_file(folder, name) for name in FILES)


def _named_folder(root: Path, key: str) -> Path:
    for layout in LAYOUTS:
        if _holds(root / layout):
            return root / layout
    missing = ", ".join(name for name in FILES if _file(root, name) is None)
    what = f"{key} names a folder without {missing}" if root.is_dir() else f"{key} names a folder that is not there"
    raise UserError(what, str(root), f"put these files there: {WANTED}")


def _fetch(cache: Path) -> None:
    """Fill the cache, or raise Skipped, in a job SiteFault; takes FETCH_S at most."""
    if os.environ.get("SCALESTUDY_OFFLINE") == "1":
        raise lacking(f"Fashion-MNIST is not available here and SCALESTUDY_OFFLINE=1 forbids fetching it; {_remedy()}")
    deadline, failures = time.monotonic() + FETCH_S, []
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache.parent) as name:
            for fetch in (_from_debian, _from_web):
                made = Path(name) / fetch.__name__
                made.mkdir()
                try:
                    folder = fetch(made, deadline)
                    _read(folder)
                except (OSError, subprocess.SubprocessError, UserError, EOFError) as error:
                    failures.append(str(error).splitlines()[0])
                    continue
                cache.mkdir(exist_ok=True)
                for file in FILES:
                    (folder / f"{file}.gz").replace(cache / f"{file}.gz")
                    (cache / file).unlink(missing_ok=True)
                return
    except OSError as error:
        failures.append(str(error))
    raise lacking(f"Fashion-MNIST is not available here and cannot be fetched ({'; '.join(failures)}); {_remedy()}")


def _remedy() -> str:
    return (
        f"set data.root, or data_roots.fashion_mnist in {site_file()}, to a folder with "
        f"{WANTED}, or install Debian's package {PACKAGE}"
    )


def _from_debian(folder: Path, deadline: float) -> Path:
    """Download and unpack Debian's package without installing it, so without root."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise OSError("apt is not installed")
    limit = min(DEBIAN_S, deadline - time.monotonic())
    options = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"]
    command = ["apt-get", "-qq", *options, "download", PACKAGE]
    done = subprocess.run(
        command, cwd=folder, timeout=limit, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    package = next(folder.glob("*.deb"), None)
    if done.returncode or package is None:
        lines = done.stderr.strip().splitlines()
        raise OSError(f"apt-get download {PACKAGE}: {lines[-1] if lines else 'no package was downloaded'}")
    subprocess.run(
        ["dpkg-deb", "-x", package.name, "unpacked"], cwd=folder, timeout=30, capture_output=True, check=True
    )
    return folder / "unpacked" / PACKAGED.relative_to("/")


def _from_web(folder: Path, deadline: float) -> Path:
    """Download the four files from the first address that has them."""
    errors: list[str] = []

    def download() -> None:
        for address in ADDRESSES:
            try:
                for name in FILES:
                    request = urllib.request.urlopen(f"{address}{name}.gz", timeout=5)
                    with request as response, open(folder / f"{name}.gz", "wb") as stream:
                        shutil.copyfileobj(response, stream)
                return
            except OSError as error:
                errors.append(f"{address}: {error}")
        errors.append("no address answered")

    # A thread that can be abandoned: looking up a name has no time limit.
    thread = threading.Thread(target=download, daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if thread.is_alive():
        raise OSError(f"{ADDRESSES[0]}: timed out")
    if errors and errors[-1] == "no address answered":
        raise OSError("; ".join(errors[:-1]))
    return folder
