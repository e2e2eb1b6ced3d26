"""The kernel shows what the plain way shows, whatever the image, and survives any bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms.v2 import functional as torchvision

from scalestudy.data import counter_rng
from scalestudy.data.decode import images, kernel
from scalestudy.data.decode.kernel.build import build

NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> kernel.Kernel:
    try:
        return kernel.Kernel(build(folder=tmp_path_factory.mktemp("kernel")))
    except RuntimeError as error:
        pytest.skip(f"KERNEL NOT TESTED: {error}")


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth image with some noise: what JPEG is made for."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    grain = np.random.default_rng(seed + 1).integers(-12, 13, picture.shape)
    return np.clip(picture + grain, 0, 255).astype(np.uint8)


def coded(picture: np.ndarray, sampling: str = "420") -> bytes:
    if sampling == "Gray":
        return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(picture[:, :, :1]), 85, "GRAY", "Gray"))
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(picture), 85, "RGB", sampling))


def both(fast: kernel.Kernel, data: bytes, view: images.View, side: int) -> tuple[np.ndarray, np.ndarray]:
    size = fast.header(data)
    shrink = images.shrink_for(view, side)
    decoded = (-(-size[0] // shrink), -(-size[1] // shrink))
    shown, plain = np.full((2, side, side, 3), 99, np.uint8)
    assert fast.show_jpeg(data, shrink, images.scaled_view(view, size, decoded), shown)
    images.show_decoded(data, *size, view, shrink, plain, lambda: False)
    return shown.astype(int), plain.astype(int)


@settings(max_examples=150, deadline=None)
@given(
    height=st.integers(1, 150),
    width=st.integers(1, 150),
    side=st.sampled_from([1, 2, 3, 7, 16, 33, 64]),
    sampling=st.sampled_from(["420", "422", "444", "440", "411", "Gray"]),
    seed=st.integers(0, 1000),
)
@example(height=3, width=3, side=1, sampling="420", seed=0)
def test_any_view_of_any_jpeg_is_that_of_the_plain_way_to_a_level(
    fast: kernel.Kernel, height: int, width: int, side: int, sampling: str, seed: int
) -> None:
    data = coded(photo(height, width, seed), sampling)
    view = images.random_view(height, width, np.random.default_rng(seed).random(images.DRAWS).tolist())
    shown, plain = both(fast, data, view, side)
    assert np.abs(shown - plain).max() <= 1


def test_views_are_those_of_torchvision_to_a_level(fast: kernel.Kernel) -> None:
    data = coded(photo(375, 500))
    whole = torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)
    draws = counter_rng.uniforms(images.DRAWS, counter_rng.AUGMENT, 0, 0, np.arange(30)).tolist()
    for numbers in draws:
        view = images.random_view(375, 500, numbers)
        shown, _ = both(fast, data, view, 224)
        box = (view.top, view.left, view.height, view.width)
        expected = torchvision.resized_crop(whole, *box, [224, 224], antialias=True)
        expected = torchvision.horizontal_flip(expected) if view.flip else expected
        assert np.abs(shown - expected.permute(1, 2, 0).numpy()).max() <= 1


@pytest.mark.parametrize("most", [0, 1])
def test_every_set_of_instructions_gives_the_same_bytes(fast: kernel.Kernel, most: int, tmp_path: Path) -> None:
    # A library has one choice: another one needs a copy.
    copy = shutil.copy(fast._c._name, tmp_path / "copy.so")
    other = kernel.Kernel(Path(copy), most)
    data, pixels = coded(photo(301, 257)), photo(97, 131)
    for seed in range(40):
        numbers = np.random.default_rng(seed).random(images.DRAWS).tolist()
        for side in (31, 64):
            out = np.zeros((4, side, side, 3), np.uint8)
            view = images.random_view(301, 257, numbers)
            assert fast.show_jpeg(data, 1, view, out[0]) and other.show_jpeg(data, 1, view, out[1])
            view = images.random_view(97, 131, numbers)
            fast.show_pixels(pixels, 97, 131, view, out[2])
            other.show_pixels(pixels, 97, 131, view, out[3])
            assert np.array_equal(out[0], out[1]) and np.array_equal(out[2], out[3])
    assert other.instructions != "AVX2"


def test_without_a_compiler_or_with_another_systems_library_the_plain_way_is_used_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "CC": "no-such-compiler", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "scalestudy.data.decode.kernel.build"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "using the slower fallback JPEG decoder: no C compiler was found" in done.stdout
    assert "apt-get install gcc" in done.stdout
    monkeypatch.setattr(kernel, "BUILT", tmp_path)
    monkeypatch.setattr(kernel, "loaded", kernel.loaded.__wrapped__)  # its answer is kept
    assert kernel.state() == "plain: simplejpeg and torch"
    (tmp_path / f"kernel-{kernel.source_key()}-another.so").write_bytes(b"for another system")
    assert kernel.state() == "plain: simplejpeg and torch"
    build(folder=tmp_path)
    assert kernel.state().startswith("kernel, ")
