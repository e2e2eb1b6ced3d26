"""The kernel shows what the plain way shows, whatever the image, and survives any bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def fast() -> kernel.Kernel:
    try:
        return kernel.Kernel(build())
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


def shown_by(fast: kernel.Kernel, data: bytes, draws: np.ndarray, side: int, **more: Any) -> np.ndarray:
    out = np.full((1, side, side, 3), 99, np.uint8)
    assert fast.show(kernel.in_memory(data), b"", draws[None], True, out, **more) == []
    return out[0]


def both(fast: kernel.Kernel, data: bytes, draws: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    plain = np.full((side, side, 3), 99, np.uint8)
    images.show_coded(data, draws, True, plain, lambda: False)
    return shown_by(fast, data, draws, side).astype(int), plain.astype(int)


@settings(max_examples=80, deadline=None)
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
    data, draws = coded(photo(height, width, seed), sampling), np.random.default_rng(seed).random(images.DRAWS)
    shown, plain = both(fast, data, draws, side)
    assert np.abs(shown - plain).max() <= 1


def test_views_are_those_of_torchvision_to_a_level(fast: kernel.Kernel) -> None:
    data = coded(photo(375, 500))
    whole = torch.from_numpy(simplejpeg.decode_jpeg(data)).permute(2, 0, 1)
    for draws in counter_rng.uniforms(images.DRAWS, counter_rng.AUGMENT, 0, 0, np.arange(30)):
        view = images.random_view(375, 500, draws.tolist())
        shown, _ = both(fast, data, draws, 224)
        box = (view.top, view.left, view.height, view.width)
        expected = torchvision.resized_crop(whole, *box, [224, 224], antialias=True)
        expected = torchvision.horizontal_flip(expected) if view.flip else expected
        assert np.abs(shown - expected.permute(1, 2, 0).numpy()).max() <= 1


def test_plain_c_gives_the_same_bytes_as_avx2(fast: kernel.Kernel, tmp_path: Path) -> None:
    # A library has one choice: another one needs a copy.
    other = kernel.Kernel(Path(shutil.copy(fast._c._name, tmp_path / "copy.so")), most=0)
    data, pixels = coded(photo(301, 257)), photo(97, 131).tobytes()
    for draws in np.random.default_rng(0).random((40, images.DRAWS)):
        for side in (31, 64):
            assert np.array_equal(shown_by(fast, data, draws, side), shown_by(other, data, draws, side))
            stored = [shown_by(one, pixels, draws, side, stored=(97, 131)) for one in (fast, other)]
            assert np.array_equal(*stored)
    assert other.instructions == "plain C"


@settings(max_examples=80, deadline=None)
@given(height=st.integers(1, 90), width=st.integers(1, 90), crop=st.booleans(), seed=st.integers(0, 1000))
def test_any_view_of_stored_pixels_is_that_of_the_plain_way(
    fast: kernel.Kernel, height: int, width: int, crop: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    pixels, draws = random.integers(0, 256, (height, width, 3), np.uint8), random.random(images.DRAWS)
    for numbers in (draws, None) if not crop else (draws,):
        shown, plain = np.zeros((2, 16, 16, 3), np.uint8)
        rows = None if numbers is None else numbers[None]
        assert fast.show(kernel.in_memory(pixels), b"", rows, crop, shown[None], stored=(height, width)) == []
        images.show(pixels, images.view_of(height, width, numbers, crop), plain)
        assert np.abs(shown.astype(int) - plain).max() <= 1


def test_a_batch_is_read_from_files_and_what_is_not_for_it_is_left(fast: kernel.Kernel, tmp_path: Path) -> None:
    good, png, shard = coded(photo(60, 80)), tmp_path / "b.png", tmp_path / "shard"
    (tmp_path / "a.jpg").write_bytes(good)
    Image.fromarray(photo(60, 80)).save(png)
    shard.write_bytes(b"head" + good)
    names = b"".join(os.fsencode(path) + b"\0" for path in (tmp_path / "a.jpg", png, tmp_path / "missing"))
    begins = [0, *(at + 1 for at, byte in enumerate(names) if byte == 0)]
    with open(shard, "rb") as file:
        pictures = np.array(
            [
                (0, 0, len(good), begins[0], 0, 0),
                (0, 0, png.stat().st_size, begins[1], 0, 0),
                (0, 4, len(good), -1, file.fileno(), 0),
                (0, 0, len(good), begins[2], 0, 0),
                (0, 5, len(good), -1, file.fileno(), 0),
            ],
            kernel.PICTURE,
        )
        out = np.zeros((5, 16, 16, 3), np.uint8)
        left = fast.show(pictures, names, None, False, out)
    assert left == [1, 3, 4]
    assert np.array_equal(out[0], out[2]) and out[0].any()
    assert fast.show(pictures[:1], names, None, False, out[:1], max_pixels=60 * 80 - 1) == [0]


def test_without_a_compiler_or_with_another_systems_library_the_plain_way_is_used_and_reported(
    fast: kernel.Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    shutil.copy(fast._c._name, tmp_path)
    assert kernel.state().startswith("kernel, ")
