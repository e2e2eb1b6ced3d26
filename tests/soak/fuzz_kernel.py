"""The kernel under AddressSanitizer and UndefinedBehaviorSanitizer, fed with damaged JPEGs.

    python -m tests.soak.fuzz_kernel [--rounds 60000]

Every set of instructions sees the same bytes, and must count the same. Exit status 1 where a sanitizer finds something.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image

from scalestudy.data.decode.kernel import INSTRUCTIONS, SOURCE

SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
SIZES = ((70, 90), (61, 47), (8, 8), (1, 1), (130, 33), (200, 256))
SAMPLINGS = ("420", "444", "422", "440", "411", "Gray")


def write_pictures(folder: Path) -> list[str]:
    """Small JPEGs of all samplings and odd sizes."""
    random, names = np.random.default_rng(0), []
    for height, width in SIZES:
        coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), np.uint8))
        picture = np.ascontiguousarray(coarse.resize((width, height)))
        for sampling in SAMPLINGS:
            grey = sampling == "Gray"
            pixels = np.ascontiguousarray(picture[:, :, :1]) if grey else picture
            file = folder / f"{height}x{width}-{sampling}.jpg"
            file.write_bytes(simplejpeg.encode_jpeg(pixels, 85, "GRAY" if grey else "RGB", sampling))
            names.append(str(file))
    return names


def main() -> None:
    """Compile, run with each set of instructions, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60_000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, source = folder / "fuzz", Path(__file__).with_suffix(".c")
        subprocess.run(["cc", *SANITIZERS, str(source), str(SOURCE), "-o", str(program), "-ljpeg", "-lm"], check=True)
        pictures, counted = write_pictures(folder), set()
        for most, instructions in enumerate(INSTRUCTIONS):
            done = subprocess.run(
                [str(program), str(most), str(rounds), *pictures], capture_output=True, text=True, check=False
            )
            print(f"{instructions}: {rounds:,} JPEGs, {done.stdout.strip()}{done.stderr[-2000:]}", flush=True)
            counted.add((done.returncode, done.stdout))
    sys.exit(0 if len(counted) == 1 and counted.pop()[0] == 0 else 1)


if __name__ == "__main__":
    main()
