"""Wheels that a machine without a network lacks: `python -m tests.gpu.pack --have FILE --out FOLDER`.

`FILE` is what `pip list --format=freeze` prints there (versions are not compared: what is there is used as it is). torch
and its libraries are taken to be there in any case. What remains of envs/requirements.txt is downloaded for that
machine's Python on x86-64 Linux, and has to stay below a limit that transfers allow. There:

    python -m pip install --no-index --no-deps --target SITE FOLDER/*.whl && PYTHONPATH=SITE python -m tests.gpu
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OF_TORCH = re.compile(r"^(torch|torchvision|triton|nvidia-.*|cuda-.*|setuptools|pip|wheel)$")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
MOST_MIB = 60


def pins() -> dict[str, str]:
    """Name and version of everything that a run needs, as locked; what is only for other systems left out."""
    lines = (ROOT / "envs/requirements.txt").read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        if match := re.match(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(.*)$", line):
            name, version, rest = match.groups()
            if not re.search(r"(win32|darwin|aarch64|emscripten)'", rest) or "!=" in rest:
                found[canonical(name)] = version
    return found


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pip(*words: str) -> str:
    """Run pip; its last line where it failed."""
    command = [sys.executable, "-m", "pip", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def main() -> int:
    """Download what is missing, print it, and fail beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--have", type=Path, required=True, help="a name a line, as `pip list --format=freeze` prints")
    parser.add_argument("--out", type=Path, required=True, help="folder for the wheels, outside the repository")
    parser.add_argument("--python", default="3.12", help="version of Python there")
    arguments = parser.parse_args()
    have = {
        canonical(re.split(r"[ =@]", line.strip())[0])
        for line in arguments.have.read_text().splitlines()
        if line.strip()
    }
    missing = {name: version for name, version in pins().items() if name not in have and not OF_TORCH.match(name)}
    arguments.out.mkdir(parents=True, exist_ok=True)
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    for name, version in missing.items():
        wanted = ("-q", "--disable-pip-version-check", "--no-deps", f"{name}=={version}")
        ready = ("--only-binary=:all:", "--python-version", arguments.python, "--implementation", "cp", *platforms)
        why = pip("download", *wanted, *ready, "-d", str(arguments.out))
        if why:  # a few are published as sources alone; built here, one without compiled parts fits everywhere
            why = pip("wheel", *wanted, "-w", str(arguments.out))
        print(f"{name}=={version}" + (f": no wheel: {why}" if why else ""))
    size = sum(wheel.stat().st_size for wheel in arguments.out.glob("*.whl")) / 2**20
    print(
        f"{size:.1f} MiB in {len(list(arguments.out.glob('*.whl')))} wheels of {len(missing)} packages; at most {MOST_MIB}"
    )
    return 0 if size <= MOST_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
