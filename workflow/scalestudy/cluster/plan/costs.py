"""Costs of models and datasets before any is built or prepared: counts from tables, without torch."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from scalestudy.data.catalogue import Digits, FashionMNIST, ImageFolder, Synthetic, SyntheticJpeg
from scalestudy.data.manifest import Manifest, read_manifest
from scalestudy.files import read_table
from scalestudy.spec.ids import dataset_id
from scalestudy.spec.layout import manifest_file, reference_file
from scalestudy.spec.run import RunSpec
from scalestudy.spec.sizes import size_in_bytes

JPEG_SIZE = 224
"""Height and width at which JPEG is trained where `loader.size` says nothing."""
BACKWARD = 3.0
"""Most that a training step computes, in forward passes: torch's counter counts the backward pass of grouped
convolutions as if they were dense."""


@dataclass(frozen=True)
class Data:
    """How much a dataset holds, and where that is known from."""

    train_samples: int
    test_samples: int
    train_bytes: int
    assumed: str = ""
    """What is assumed until the data has been indexed; empty where it is known."""


@functools.cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """The rows of a file in config/reference/; none where there is no such file."""
    file = reference_file(name)
    if not file.is_file():
        return ()
    return tuple(read_table(file, NEEDED.get(name, ()), WHOLES, NUMBERS))


WHOLES = ("train_samples", "test_samples", "train_bytes", "height", "width", "parameters", "ranks", "batch.per_rank",
          "train.epochs", "training_samples")  # fmt: skip
NUMBERS = ("forward_flops", "training_flops", "training_time_s")
NEEDED = {
    "dataset_sizes": ("source", *WHOLES[:3], "source_of_numbers"),
    "model_costs": ("model", *WHOLES[3:6], *NUMBERS[:2]),
}
"""Columns of the tables, and which of them hold numbers."""


@functools.cache
def _prepared(dataset: str) -> Manifest | None:
    file = manifest_file(dataset)
    manifest = read_manifest(file) if file.is_file() else None
    return manifest if manifest is not None and manifest.status == "ready" else None


def data_of(spec: RunSpec) -> Data | None:
    """Samples and bytes of a run's data: from its manifest, from its own options, or assumed; None where unknown."""
    manifest = _prepared(dataset_id(spec.data)) if spec.program is None else None
    if manifest is not None:
        return Data(manifest.train.samples, manifest.test.samples, manifest.train.bytes)
    data = spec.data
    scale = data.scale if isinstance(data.scale, float) else None
    if isinstance(data, SyntheticJpeg):
        one = data.mean_kib * 1024
        samples = round(data.samples * scale) if scale is not None else round(_bytes(data.scale) / one)
        return Data(samples, max(1, data.samples // 10), round(samples * one))
    if isinstance(data, Synthetic):
        samples = round(data.samples * scale) if scale is not None else data.samples
        return Data(samples, max(1, data.samples // 10), 0)
    row = next((row for row in table("dataset_sizes") if row["source"] == data.source), None)
    if row is None or spec.program is not None:
        return None
    whole = Data(int(row["train_samples"]), int(row["test_samples"]), int(row["train_bytes"] or 0))
    if scale is None and not whole.train_bytes:
        return None
    factor = scale if scale is not None else _bytes(data.scale) / whole.train_bytes
    assumed = f"`{data.source}` is not indexed yet: {row['source_of_numbers']}" if isinstance(data, ImageFolder) else ""
    return Data(round(whole.train_samples * factor), whole.test_samples, round(whole.train_bytes * factor), assumed)


def used_in_place(spec: RunSpec) -> bool:
    """Whether files of the site are used as and where they lie, so that preparing them only looks at them."""
    data = spec.data
    made = isinstance(data, (Digits, FashionMNIST, Synthetic, SyntheticJpeg))
    return not made and data.preprocess == "none" and data.shard.format == "files"


def stored_bytes(spec: RunSpec) -> int:
    """Roughly the bytes that preparing the data writes."""
    data = data_of(spec)
    if data is None or used_in_place(spec):
        return 0
    return data.train_samples * 3 * spec.data.resize**2 if spec.data.preprocess == "raw" else data.train_bytes


def stored_files(spec: RunSpec) -> int:
    """About how many files preparing the data writes: one per image, or its shards; none of data made while it is read."""
    data = data_of(spec)
    if data is None or used_in_place(spec) or isinstance(spec.data, Synthetic):
        return 0
    shard = spec.data.shard
    if shard.format == "files":
        return data.train_samples + data.test_samples
    return 2 + (0 if shard.format == "lmdb" else 2 * math.ceil(stored_bytes(spec) / (shard.mib * 2**20)))


def _bytes(size: object) -> float:
    return size_in_bytes(str(size), node_memory_bytes=0)


@dataclass(frozen=True)
class ModelCost:
    """Operations of one model for one sample, and its size."""

    parameters: int
    forward_flops: float
    training_flops: float


def model_cost(spec: RunSpec) -> ModelCost | None:
    """The counted row of the run's model, brought to its image size; None for options that were not counted."""
    options = spec.model.plain()
    name = options.pop("name", None)
    rows = [row for row in table("model_costs") if row["model"] == name]
    if options or not rows:
        return None
    pixels = _pixels(spec)
    row = min(rows, key=lambda row: abs(int(row["height"]) * int(row["width"]) - (pixels or 0)))
    # A fully connected network computes the same per sample for images of any size but in its first layer.
    factor = 1.0 if pixels is None or name == "mlp" else pixels / (int(row["height"]) * int(row["width"]))
    forward = float(row["forward_flops"])
    training = min(float(row["training_flops"]), BACKWARD * forward)
    return ModelCost(int(row["parameters"]), forward * factor, training * factor)


def _pixels(spec: RunSpec) -> int | None:
    """Pixels of a training image."""
    if spec.loader.size is not None:
        return spec.loader.size**2
    if isinstance(spec.data, Synthetic):
        shape = spec.data.shape
        return shape[-1] * shape[-2] if len(shape) >= 3 else None
    if isinstance(spec.data, Digits):
        return 8 * 8
    if isinstance(spec.data, FashionMNIST):
        return 28 * 28
    return JPEG_SIZE**2


@dataclass(frozen=True)
class Work:
    """Work of a run."""

    steps: int
    evaluated_samples: int
    """Held-out samples over all evaluations and ranks."""
    loaded_samples: int
    """Samples per rank that are loaded before training, without it."""
    minutes: float = 0.0
    """Length of a window that is measured by the clock, in addition to `steps`."""


def work_of(spec: RunSpec, data: Data) -> Work:
    """Steps and evaluations of a run on data of this size."""
    per_epoch = max(1, data.train_samples // spec.global_batch)
    whole = per_epoch * spec.train.epochs
    loaded = spec.measure.loader_batches * spec.rank_batch
    every = spec.train.evaluate_every_epochs
    window = spec.measure.steps
    if spec.measure.minutes is not None:
        steps, minutes = min(whole, spec.measure.warmup_steps), spec.measure.minutes
    else:
        steps = whole if window is None else min(whole, spec.measure.warmup_steps + window)
        minutes = 0.0
    epochs = steps // per_epoch
    evaluations = 0 if not every or spec.accelerator else epochs // every + (steps % (per_epoch * every) != 0)
    return Work(steps, evaluations * data.test_samples, loaded, minutes)
