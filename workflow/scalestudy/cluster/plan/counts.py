"""Costs of models and datasets, and bytes that jobs leave, before any is made: counts from tables, without torch."""

from __future__ import annotations

import functools
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
PIXELS = {"digits": 8 * 8, "fashion_mnist": 28 * 28}
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


SIZES = ("train_samples", "test_samples")
COSTS = ("height", "width", "parameters")
FLOPS = ("forward_flops", "training_flops")
NEEDED = {"dataset_sizes": ("source", *SIZES), "model_costs": ("model", *COSTS, *FLOPS)}
"""Columns of each table that have a value in each row."""


@functools.cache
def table(name: str) -> list[dict[str, str]]:
    """The rows of a file in config/reference/; none where there is no such file."""
    file = reference_file(name)
    return read_table(file, NEEDED[name], (*SIZES, *COSTS, "train_bytes"), FLOPS) if file.is_file() else []


@functools.cache
def prepared(dataset: str) -> Manifest | None:
    """The manifest of a dataset that is ready; None of any other."""
    file = manifest_file(dataset)
    manifest = read_manifest(file) if file.is_file() else None
    return manifest if manifest is not None and manifest.status == "ready" else None


def data_of(spec: RunSpec) -> Data | None:
    """Samples and bytes of a run's data: from its manifest, from its own options, or assumed; None where unknown."""
    if spec.program is None and (manifest := prepared(dataset_id(spec.data))) is not None:
        return Data(manifest.train.samples, manifest.test.samples, manifest.train.bytes)
    data, scale = spec.data, spec.data.scale
    factor = scale if isinstance(scale, float) else None
    size = 0.0 if isinstance(scale, float) else size_in_bytes(scale, node_memory_bytes=0)
    if isinstance(data, SyntheticJpeg):
        one = data.mean_kib * 1024
        samples = round(size / one if factor is None else data.samples * factor)
        return Data(samples, max(1, data.samples // 10), round(samples * one))
    if isinstance(data, Synthetic):
        return Data(round(data.samples * (factor or 1)), max(1, data.samples // 10), 0)
    row = next((row for row in table("dataset_sizes") if row["source"] == data.source), None)
    if row is None or spec.program is not None:
        return None
    whole = Data(int(row["train_samples"]), int(row["test_samples"]), int(row["train_bytes"] or 0))
    if factor is None:
        if not whole.train_bytes:
            return None
        factor = size / whole.train_bytes
    assumed = f"`{data.source}` is not indexed yet: {row['source_of_numbers']}" if isinstance(data, ImageFolder) else ""
    return Data(round(whole.train_samples * factor), whole.test_samples, round(whole.train_bytes * factor), assumed)


def used_in_place(spec: RunSpec) -> bool:
    """Whether files of the site are used as and where they lie, so that preparing them only looks at them."""
    data = spec.data
    made = isinstance(data, (Digits, FashionMNIST, Synthetic, SyntheticJpeg))
    return not made and data.preprocess == "none" and data.shard.format == "files"


@dataclass(frozen=True)
class ModelCost:
    """Operations of one model for one sample, and its size."""

    parameters: int
    training_flops: float


def model_cost(spec: RunSpec) -> ModelCost | None:
    """The counted row of the run's model, brought to its image size; None for options that were not counted."""
    options = spec.model.to_dict()
    name = options.pop("name", None)
    rows = [row for row in table("model_costs") if row["model"] == name]
    if options or not rows:
        return None
    pixels = _pixels(spec)
    row = min(rows, key=lambda row: abs(int(row["height"]) * int(row["width"]) - (pixels or 0)))
    # A fully connected network computes the same per sample for images of any size but in its first layer.
    factor = 1.0 if pixels is None or name == "mlp" else pixels / (int(row["height"]) * int(row["width"]))
    training = min(float(row["training_flops"]), BACKWARD * float(row["forward_flops"]))
    return ModelCost(int(row["parameters"]), training * factor)


def _pixels(spec: RunSpec) -> int | None:
    """Pixels of a training image."""
    if spec.loader.size is not None:
        return spec.loader.size**2
    if isinstance(spec.data, Synthetic):
        shape = spec.data.shape
        return shape[-1] * shape[-2] if len(shape) >= 3 else None
    return PIXELS.get(spec.data.source, JPEG_SIZE**2)


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
    steps, measure, minutes = per_epoch * spec.train.epochs, spec.measure, spec.measure.minutes
    if minutes is not None:
        steps = min(steps, measure.warmup_steps)
    elif measure.steps is not None:
        steps = min(steps, measure.warmup_steps + measure.steps)
    epochs, every = steps // per_epoch, spec.train.evaluate_every_epochs
    evaluations = 0 if not every or spec.accelerator else epochs // every + (steps % (per_epoch * every) != 0)
    loaded = measure.loader_batches * max(1, spec.loader.workers) * spec.rank_batch
    return Work(steps, evaluations * data.test_samples, loaded, minutes or 0.0)
