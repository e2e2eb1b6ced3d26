from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from scalestudy.data.decode import images
from scalestudy.data.load.dataset import Dataset, open_dataset
from scalestudy.data.load.normalise import normalise
from scalestudy.errors import UserError
from tests.unit.data.conftest import Prepared, photo

JPEG = {"source": "synthetic_jpeg", "samples": 30, "width": 120, "height": 96, "mean_kib": 5.0}
SOURCES = {
    "files": JPEG,
    "raw": {**JPEG, "preprocess": "raw"},
    "digits": {"source": "digits"},
    "synthetic": {"source": "synthetic", "samples": 30, "shape": [3, 20, 20]},
}


def batch(data: Dataset, samples: list[int], **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    usual = {"size": None, "augment": "crop_flip", "seed": 0, "epoch": 0, "train": True}
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


@pytest.mark.parametrize("source", SOURCES)
def test_evaluation_shows_every_sample_as_it_is(source: str, prepared: Prepared) -> None:
    data = open_dataset(prepared(**SOURCES[source])[0], "test")
    first, _ = batch(data, [0, 1], train=False)
    assert torch.equal(first, batch(data, [0, 1], train=False, seed=3, epoch=7)[0])
    assert first.dtype == torch.uint8 and first.shape[2:] == data.image_size


@pytest.mark.parametrize("source", ["files", "raw"])
def test_pictures_are_channels_last_and_224_wide(source: str, prepared: Prepared) -> None:
    data = open_dataset(prepared(**SOURCES[source])[0], "train")
    x, y = batch(data, [3, 4])
    assert x.shape == (2, 3, 224, 224) and x.is_contiguous(memory_format=torch.channels_last)
    assert y.tolist() == [3, 4] and y.dtype == torch.int64


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


def test_a_picture_in_which_no_random_crop_fits_is_cropped_at_the_centre() -> None:
    assert images.random_view(10, 1000, [0.99] * images.DRAWS) == (0, 493, 10, 13, False)


def test_the_centre_of_a_256_pixel_picture_is_kept_to_the_pixel() -> None:
    assert images.centre_view(256, 341) == (16, 58, 224, 224, False)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_decoded_pictures_are_those_that_pillow_shows(mode: str, tmp_path: Path) -> None:
    data = photo(64, 48, mode=mode)
    (tmp_path / "picture.jpg").write_bytes(data)
    expected = np.asarray(Image.open(tmp_path / "picture.jpg").convert("RGB")).astype(int)
    assert np.abs(images.decode(data).astype(int) - expected).mean() < 3


def test_large_pictures_are_decoded_smaller_and_show_the_same() -> None:
    data = photo(800, 600)
    view = images.View(101, 203, 390, 475)
    assert images.decode(data, images.shrink_for(view, 64)).shape == (150, 200, 3)
    small, large = np.empty((2, 64, 64, 3), np.uint8)
    images.show_coded(data, *images.header(data), view, 4, small, lambda: False)
    images.show(simplejpeg.decode_jpeg(data), view, torch.from_numpy(large).permute(2, 0, 1))
    assert np.abs(small.astype(int) - large).mean() < 2


@pytest.mark.parametrize(
    "contents", [b"", b"\xff\xd8 no more", b"text", photo(80, 64)[:600], photo(80, 64, "PNG")[:600]]
)
def test_a_damaged_picture_is_an_error_with_file_and_sample(
    contents: bytes, picture_folder: Path, prepared: Prepared
) -> None:
    path, _ = prepared(source="image_folder", root=str(picture_folder))
    (picture_folder / "train/cat/2.jpg").write_bytes(contents)
    with pytest.raises(UserError, match=r"train/cat/2.jpg: sample 2 cannot be read"):
        batch(open_dataset(path, "train"), [0, 2])


def test_raw_data_that_was_cut_is_an_error(prepared: Prepared) -> None:
    path, _ = prepared(**SOURCES["raw"])
    data = open_dataset(path, "train")
    with open(data.files[0], "r+b") as stream:
        stream.truncate(196608 * 10)
    with pytest.raises(UserError, match=r"sample 20 .*cannot be read: it ends after"):
        batch(data, [20])
    with pytest.raises(UserError, match="prepared data cannot be read"):
        open_dataset(path, "train")


@pytest.mark.parametrize("source", ["files", "raw"])
def test_bytes_and_ranges_are_those_of_the_samples_asked_for(source: str, prepared: Prepared) -> None:
    data = open_dataset(prepared(**SOURCES[source])[0], "train")
    samples = np.array([2, 5])
    assert sum(count for _, _, count in data.ranges(samples)) == data.bytes_of(samples)
    assert data.bytes_of(np.arange(30)) == data.stored_bytes


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normalised_images_are_what_the_formula_says(channels: int, dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).repeat(channels).reshape(channels, 1, 16, 16).transpose(0, 1).contiguous()
    mean, deviation = {1: (0.3, 0.35), 3: (0.485, 0.229), 5: (0.5, 0.3)}[channels]
    expected = (torch.arange(256, dtype=torch.float64) / 255 - mean) / deviation
    shown = normalise(x, dtype, "cpu")[0, 0].flatten().double()
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
    assert torch.allclose(shown, expected, atol=tolerance, rtol=tolerance)


def test_normalised_images_do_not_depend_on_their_memory_format() -> None:
    x = torch.randint(0, 256, (2, 3, 8, 6), dtype=torch.uint8)
    plain = normalise(x, torch.float32, "cpu").clone()
    assert torch.equal(normalise(x.contiguous(memory_format=torch.channels_last), torch.float32, "cpu"), plain)


def test_normalising_writes_into_the_memory_that_it_used_before() -> None:
    x = torch.zeros((4, 3, 8, 8), dtype=torch.uint8)
    assert normalise(x, torch.float32, "cpu").data_ptr() == normalise(x[:2], torch.float32, "cpu").data_ptr()


def test_floats_of_own_data_are_not_normalised() -> None:
    assert normalise(torch.ones(2, 3, 4, 4), torch.float64, "cpu").eq(1).all()
