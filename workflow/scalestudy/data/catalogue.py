"""The data sources by name, with their options: what makes one dataset differ from another. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from scalestudy.spec.base import Spec, refused


class Shard(Spec):
    """In which file format images are stored."""

    format: Literal["files", "tar", "lmdb", "raw"] = "files"
    """One file per image; ustar shards as WebDataset reads them; one LMDB database; shards of pixels, for
    `preprocess: raw`. Shuffled when written, but for one file per image."""
    mib: Annotated[float, Field(ge=1 / 1024, le=1024)] = 64.0
    """Size of a `tar` or `raw` shard, MiB: at most, but for one that holds a single larger image; with
    `preprocess: resized`, on average."""


class DatasetSpec(Spec):
    """One concrete form of the data; its id is derived from its keys, as a run's is."""

    scale: Annotated[float, Field(gt=0, le=1000)] | str = 1.0
    """Factor on the number of training samples, or a size: `64 MiB`, `2x node memory` (turned into bytes)."""
    preprocess: Literal["none", "resized", "raw"] = "none"
    """Ahead of time: nothing; JPEG with the shorter side `resize`; decoded pixels (uint8, square, `resize` wide).
    EXIF orientation is not applied, as torchvision's datasets do not."""
    resize: Annotated[int, Field(ge=8, le=8192)] = 256
    """Shorter side of `resized` images, both sides of `raw` ones, pixels."""
    quality: Annotated[int, Field(ge=1, le=100)] = 90
    """JPEG quality of `resized` images."""
    shard: Shard = Shard()
    """In which file format images are stored."""
    on_error: Literal["fail", "skip"] = "fail"
    """Damaged images, others (WebP, TIFF, …), links to nothing, classes without images, and folders in classes: `fail`
    names the first and stops (an image that cannot be decoded stops it where the data is stored anew; used where it lies,
    it is an error when it is read); `skip` decodes every image once, and leaves them out and lists them."""

    @field_validator("shard")
    @classmethod
    def _pixels_in_raw_shards(cls, shard: Shard, before: ValidationInfo) -> Shard:
        pixels = before.data.get("preprocess") == "raw"
        if shard.format == "raw" and not pixels:
            raise refused("shards of format `raw` hold pixels", "add `preprocess: raw`, or use `tar`", "format")
        if shard.format == "tar" and pixels:
            raise refused("tar shards hold JPEG and PNG, not pixels", "use `format: raw` or `lmdb`", "format")
        return shard


class Digits(DatasetSpec):
    """8x8 grey digits of scikit-learn: 1,437 for training, 360 held out."""

    source: Literal["digits"]


class FashionMNIST(DatasetSpec):
    """28x28 grey clothes: 60,000 for training, 10,000 held out, from the four IDX files."""

    source: Literal["fashion_mnist"]
    root: str | None = None
    """Folder with the four IDX files (.gz). Unset: looked for, then downloaded, else the run is skipped."""


class Synthetic(DatasetSpec):
    """Random tensors made in memory, the same for the same seed."""

    source: Literal["synthetic"]
    samples: Annotated[int, Field(ge=1, le=10**9)] = 4096
    """Training samples; a tenth as many are held out."""
    shape: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=4)] = (3, 224, 224)
    """Shape of one sample."""
    classes: Annotated[int, Field(ge=2, le=10**6)] = 10
    """Number of classes or labels."""
    task: Literal["classification", "multilabel"] = "classification"
    """One class per sample, or any number of labels."""
    latency_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Sleep per sample, seconds: stands for slow storage or preprocessing."""


class SyntheticJpeg(DatasetSpec):
    """Photo-like JPEG files of a stated number and size, the same for the same options."""

    source: Literal["synthetic_jpeg"]
    samples: Annotated[int, Field(ge=1, le=10**8)] = 1000
    """Training samples; a tenth as many are held out."""
    width: Annotated[int, Field(ge=16, le=16384)] = 500
    """Pixels."""
    height: Annotated[int, Field(ge=16, le=16384)] = 375
    """Pixels."""
    mean_kib: Annotated[float, Field(gt=0, le=102400)] = 100.0
    """Mean size of a file, KiB; reached within 10 %."""
    classes: Annotated[int, Field(ge=2, le=10**6)] = 10
    """Number of classes."""


class ImageFolder(DatasetSpec):
    """`train/<class>/*.jpg` and `val/<class>/*.jpg`, as torchvision's ImageFolder has them."""

    source: Literal["image_folder"]
    root: str | None = None
    """The folder that holds `train` and `val`; unset: `data_roots.image_folder` of the site."""


class ImageNet(DatasetSpec):
    """ILSVRC2012, 1,281,167 for training, 50,000 held out: folders of classes, or the original tars, read in place."""

    source: Literal["imagenet"]
    root: str | None = None
    """Folder with `train` and `val`, or with the two tars and `LOC_val_solution.csv`; unset: `data_roots`."""


class ChestXray14(DatasetSpec):
    """112,120 X-ray images with up to 14 findings each (NIH), patient-wise split."""

    source: Literal["chest_xray14"]
    root: str | None = None
    """Folder with `Data_Entry_2017.csv`, the two lists and the images; unset: `data_roots`."""


class Caltech256(DatasetSpec):
    """30,607 images of 257 classes; every fifth of a class in the order of names is held out."""

    source: Literal["caltech256"]
    root: str | None = None
    """Folder with `256_ObjectCategories`, or that folder; unset: `data_roots`."""


class OwnData(DatasetSpec):
    """Your own map-style dataset: `{import: my_data:MyData, kwargs: {...}}` from config/extensions/."""

    import_: Annotated[str, Field(alias="import", pattern=r"^[A-Za-z_][A-Za-z0-9_]*:[A-Za-z_][A-Za-z0-9_]*$")]
    """`file:class`; called with `train=True` or `train=False` and `kwargs`; items are (array, label)."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments for the class."""

    @property
    def source(self) -> str:
        """The class name, for labels and slugs."""
        return self.import_.partition(":")[2]


NamedData = Digits | FashionMNIST | Synthetic | SyntheticJpeg | ImageFolder | ImageNet | ChestXray14 | Caltech256
AnyData = NamedData | OwnData

Mode = Literal["file", "shards", "stream", "database", "memory", "synthetic"]

MODES: dict[str, tuple[Mode, ...]] = {
    "files": ("file", "stream", "memory", "synthetic"),
    "shards": ("shards", "stream", "memory", "synthetic"),
    "raw": ("shards", "stream", "memory", "synthetic"),
    "database": ("database", "memory", "synthetic"),
    "tensors": ("memory", "synthetic"),
}
"""The input modes that each format of data has, its own first."""

FORMAT_OF_SHARD = {"files": "files", "tar": "shards", "raw": "shards", "lmdb": "database"}
"""The format that `data.shard.format` leads to, where images are stored by us."""
TENSOR_SOURCES = ("digits", "fashion_mnist", "synthetic")
