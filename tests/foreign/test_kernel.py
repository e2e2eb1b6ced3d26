"""The kernel under AddressSanitizer and UndefinedBehaviorSanitizer, with damaged JPEGs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from scalestudy.data.decode.kernel import INSTRUCTIONS, SOURCE

ROUNDS = os.environ.get("SCALESTUDY_FUZZ_ROUNDS", "1000")
"""JPEGs per set of instructions; `make soak` has more."""
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SIZES = ((70, 90), (61, 47), (8, 8), (1, 1), (130, 33), (200, 256))
SAMPLINGS = ("420", "444", "422", "440", "411", "Gray")


def write_images(folder: Path) -> list[str]:
    """Small JPEGs of all samplings and odd sizes."""
    random, names = np.random.default_rng(0), []
    for height, width in SIZES:
        coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), np.uint8))
        image = np.ascontiguousarray(coarse.resize((width, height)))
        for sampling in SAMPLINGS:
            grey = sampling == "Gray"
            pixels = np.ascontiguousarray(image[:, :, :1]) if grey else image
            file = folder / f"{height}x{width}-{sampling}.jpg"
            file.write_bytes(simplejpeg.encode_jpeg(pixels, 85, "GRAY" if grey else "RGB", sampling))
            names.append(str(file))
    return names


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_all_instruction_sets_read_the_same_of_damaged_jpegs_and_no_byte_beyond(tmp_path: Path) -> None:
    program = tmp_path / "fuzz"
    source = Path(__file__).with_name("kernel.c")
    built = subprocess.run(
        ["cc", *SANITIZERS, str(source), str(SOURCE), "-o", str(program), "-ljpeg", "-lm"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode:
        pytest.skip(f"the kernel cannot be built with sanitizers here: {built.stderr[-200:]}")
    images = write_images(tmp_path)
    counts = {
        subprocess.run([str(program), str(most), ROUNDS, *images], capture_output=True, text=True, check=True).stdout
        for most in range(len(INSTRUCTIONS))
    }
    assert len(counts) == 1
