"""Fashion-MNIST (Xiao, Rasul, Vollgraf: arXiv 1708.07747) from its four IDX files, on disk or fetched."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.request
import zlib
from http.client import HTTPException
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalestudy.data.catalogue import FashionMNIST
from scalestudy.data.manifest import Split
from scalestudy.data.sources import Arrays
from scalestudy.errors import UserError
from scalestudy.files import atomic_path, expanded
from scalestudy.site_fault import lacking, site_file
from scalestudy.spec.config import Site

IMAGES: dict[Split, str] = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}
LABELS: dict[Split, str] = {"train": "train-labels-idx1-ubyte.gz", "test": "t10k-labels-idx1-ubyte.gz"}

# SHA-256 of the files unpacked, because Debian packs them anew (other .gz, same contents). They are what the published
# .gz hold whose MD5 torchvision lists: 8d4fb7e6c68d591d4c3dfef9ec88bf0d, bef4ecab320f06d8554ea6380940ec79,
# 25c81989df183df01b3e8a0aad5dffbe, bb300cfdad3c16e7a12a480ee83cd310 (images of train and test, labels of train and test).
CONTENTS = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Folder of Debian's package dataset-fashion-mnist."""
ADDRESS = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
WANTED = f"{', '.join(CONTENTS)} (31 MB)"
REMEDY = "install Debian's package dataset-fashion-mnist"
ANEW = "copy it again; delete it where it was fetched: a proxy may have answered with a page of its own"
TIMEOUT_S = 10.0
"""Limit of each wait for the server, seconds."""
IMAGE_HEADER, LABEL_HEADER = 16, 8
"""Bytes of an IDX header: a magic number, and four for the size of each dimension."""


def provide(spec: FashionMNIST, site: Site) -> Arrays:
    """60,000 samples for training and 10,000 held out, uint8 [samples, 1, 28, 28], 10 classes."""
    named = spec.root or site.data_roots.get("fashion_mnist")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scalestudy" / "fashion_mnist"
    places = [expanded(named)] if named else [PACKAGED, cache]
    folder = next((place for place in places if all((place / name).is_file() for name in CONTENTS)), None)
    if folder is None and named:
        raise UserError("holds no complete Fashion-MNIST", named, f"put these files there: {WANTED}")
    folder = folder or _fetched(cache)
    splits: dict[Split, tuple[NDArray[np.uint8], NDArray[np.int64]]] = {}
    for split in IMAGES:
        images, labels = (_unpacked(folder / names[split]) for names in (IMAGES, LABELS))
        pixels = np.frombuffer(images, np.uint8, offset=IMAGE_HEADER).reshape(-1, 1, 28, 28)
        splits[split] = pixels, np.frombuffer(labels, np.uint8, offset=LABEL_HEADER).astype(np.int64)
    return Arrays(splits, 10)


def _unpacked(path: Path) -> bytes:
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot be read: {error}", str(path), ANEW) from None
    if hashlib.sha256(data).hexdigest() != CONTENTS[path.name]:
        raise UserError("is not Fashion-MNIST's file of that name, or is damaged", str(path), ANEW)
    return data


def _fetched(cache: Path) -> Path:
    """The filled cache; raises Skipped, in a job SiteFault, where the files cannot be fetched."""
    remedy = f"set data.root, or data_roots.fashion_mnist in {site_file()}, to a folder with {WANTED}, or {REMEDY}"
    if os.environ.get("SCALESTUDY_OFFLINE") == "1":
        raise lacking(f"Fashion-MNIST is not available here and SCALESTUDY_OFFLINE=1 forbids fetching it; {remedy}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        for name in CONTENTS:
            with (
                atomic_path(cache / name) as temporary,
                urllib.request.urlopen(f"{ADDRESS}{name}", timeout=TIMEOUT_S) as response,
            ):
                temporary.write_bytes(response.read())
    except (OSError, HTTPException) as error:
        raise lacking(f"Fashion-MNIST is not available here and cannot be fetched ({error}); {remedy}") from None
    return cache
