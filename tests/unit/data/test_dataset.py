from __future__ import annotations

import numpy as np
import pytest
import torch

from scalestudy.data.decode import images
from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.normalise import normalise
from tests.unit.data.conftest import Prepared

JPEG = {"source": "synthetic_jpeg", "samples": 30, "width": 120, "height": 96, "mean_kib": 5.0}
SOURCES = {
    "files": JPEG,
    "raw": {**JPEG, "preprocess": "raw"},
    "digits": {"source": "digits"},
    "synthetic": {"source": "synthetic", "samples": 30, "shape": [3, 20, 20]},
}


def batch(data: Dataset, samples: list[int], **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    usual = {"size": None, "augment": "crop_flip", "seed": 0, "epoch": 0}
    return data.batch(np.array(samples), **{**usual, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("augment", ["flip", "crop_flip"])
def test_pixels_depend_on_seed_epoch_and_sample_only(source: str, augment: str, prepared: Prepared) -> None:
    data = open_dataset(prepared(**SOURCES[source])[0], "train")
    size = 32 if source in ("files", "raw") else None
    x, _ = batch(data, list(range(30)), augment=augment, size=size)
    turned, _ = batch(data, list(range(29, -1, -1)), augment=augment, size=size)
    assert torch.equal(turned.flip(0), x)
    for other in ({"seed": 1}, {"epoch": 1}):
        assert not torch.equal(batch(data, list(range(30)), augment=augment, size=size, **other)[0], x)
    as_it_is, _ = batch(data, [0, 1], augment="none")
    assert torch.equal(as_it_is, batch(data, [0, 1], augment="none", seed=3, epoch=7)[0])
    assert as_it_is.dtype == torch.uint8 and as_it_is.shape[2:] == data.image_size


def test_flips_mirror_half_of_the_samples(prepared: Prepared) -> None:
    data = open_dataset(prepared(source="digits")[0], "train")
    plain, _ = batch(data, list(range(1000)), augment="none")
    shown, _ = batch(data, list(range(1000)), augment="flip")
    mirrored = (shown == plain.flip(-1)).flatten(1).all(1)
    kept = (shown == plain).flatten(1).all(1)
    assert (mirrored | kept).all() and 450 < mirrored.sum() < 550


def test_random_views_have_the_areas_and_ratios_of_a_random_resized_crop() -> None:
    draws = np.random.default_rng(0).random((4000, images.DRAWS))
    views = [images.random_view(1000, 1000, numbers) for numbers in draws.tolist()]
    area = np.array([view.height * view.width / 1e6 for view in views])
    ratio = np.array([view.width / view.height for view in views])
    assert area.min() >= 0.079 and ratio.min() >= 0.74 and ratio.max() <= 1.35
    # torchvision's own 20,000 draws: area 0.477 +- 0.234, ratio 1.012 +- 0.161.
    assert 0.46 < area.mean() < 0.495 and 0.22 < area.std() < 0.25
    assert 1.0 < ratio.mean() < 1.025 and 0.15 < ratio.std() < 0.17
    assert all(view.top + view.height <= 1000 and view.left + view.width <= 1000 for view in views)


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normalised_images_are_what_the_formula_says(channels: int, dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).repeat(channels).reshape(channels, 1, 16, 16).transpose(0, 1).contiguous()
    mean, deviation = {1: (0.3, 0.35), 3: (0.485, 0.229), 5: (0.5, 0.3)}[channels]
    expected = (torch.arange(256, dtype=torch.float64) / 255 - mean) / deviation
    shown = normalise(x, dtype, "cpu")[0, 0].flatten().double()
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
    assert torch.allclose(shown, expected, atol=tolerance, rtol=tolerance)
