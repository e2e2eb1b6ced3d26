"""Make the project's `.venv`, or leave it alone where nothing has changed. Standard library only; called by the Makefile.

    python3 envs/venv.py [--dev]

The environment holds what envs/requirements.txt (with --dev also envs/requirements-dev.txt) pins by hash, and this project
as an editable install; `uv` installs it where it is there, else pip. Variables:
LOCK=NAME installs envs/requirements-NAME.txt in place of envs/requirements.txt, also next time; LOCK=default goes back.
VENV=FOLDER puts the environment into that folder; `.venv` is then a link to it.
TORCH_INDEX=URL takes torch and torchvision, at the pinned versions, from another index (a CPU-only build, for example).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "scalestudy.json"
ENVS = ROOT / "envs"
DEFAULT = "default"
TORCH_PARTS = re.compile(r"^(torch|torchvision|triton|nvidia-|cuda-)")


def main() -> None:
    """Bring `.venv` to what the lock files pin."""
    if sys.version_info < (3, 11):
        fail(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}", "make PYTHON=python3.12 run")
    if folder := os.environ.get("VENV"):
        link_to(Path(folder).expanduser().absolute())
    known = read_stamp()
    name = os.environ.get("LOCK") or known.get("lock") or DEFAULT
    locks = {"run": lock_file(name)}
    if "--dev" in sys.argv[1:]:
        locks["dev"] = ENVS / "requirements-dev.txt"
    if known.get("path") != str(VENV.resolve()) or not works():
        create()
        known = {}
    for part, lock in locks.items():
        if known.get(part) != digest(lock):
            install(lock, is_run=part == "run")
            known = {**known, "path": str(VENV.resolve()), part: digest(lock), "lock": name}
            write_stamp(known)
    project = f"{digest(ROOT / 'pyproject.toml')} {ROOT}"
    if known.get("project") != project:
        pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        write_stamp({**known, "project": project})
    # Compiled once; without a compiler it reports so, and the slower fallback JPEG decoder is used.
    subprocess.run([python(), "-m", "scalestudy.data.decode.kernel.build"], cwd=ROOT, check=False)


def link_to(folder: Path) -> None:
    """Make `.venv` a link to a folder that is new, empty, or an environment."""
    if VENV.resolve() == folder.resolve():
        return
    if VENV.is_dir() and not VENV.is_symlink():
        fail("`.venv` is a folder here already", f"remove it (rm -r {VENV}), and run the same command again")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
        fail(f"{folder} is not an environment and not empty", "name a folder that is new or empty")
    VENV.unlink(missing_ok=True)
    VENV.symlink_to(folder)


def lock_file(name: str) -> Path:
    """The lock that LOCK names."""
    lock = ENVS / ("requirements.txt" if name == DEFAULT else f"requirements-{name}.txt")
    if not lock.is_file() or name == "dev":
        names = [file.stem.removeprefix("requirements-") for file in sorted(ENVS.glob("requirements-*.txt"))]
        fail(f"there is no lock file {name}", f"known: {', '.join([DEFAULT, *(n for n in names if n != 'dev')])}")
    return lock


def read_stamp() -> dict[str, str]:
    """The digests that the environment was made from; empty where there is none."""
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError):
        return {}


def write_stamp(stamp: dict[str, str]) -> None:
    """Write the stamp after each step, so that an interrupted set-up resumes."""
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamp))
    temporary.replace(STAMP)


def works() -> bool:
    """Whether the interpreter that the environment was made with still exists."""
    return Path(python()).exists() and subprocess.run([python(), "-c", ""], check=False).returncode == 0


def create() -> None:
    """Make a new, empty environment."""
    place = VENV.resolve()
    print(f"setup: making {place} with Python {sys.version.split()[0]}", flush=True)
    shutil.rmtree(place, ignore_errors=True)
    # Not sys.executable: with the old environment active that is an interpreter which was just deleted.
    base = getattr(sys, "_base_executable", None) or sys.executable
    if subprocess.run([base, "-m", "venv", str(place)], check=False).returncode:
        shutil.rmtree(place, ignore_errors=True)
        fail("no virtual environment can be made", "on Debian and Ubuntu: apt-get install python3-venv")


def install(lock: Path, *, is_run: bool) -> None:
    """Install what a lock pins."""
    index = os.environ.get("TORCH_INDEX") if is_run else None
    size = " (torch and its CUDA libraries: about 5.5 GB)" if is_run and not index else ""
    print(f"setup: installing what {lock.relative_to(ROOT)} pins{size}", flush=True)
    if index:
        blocks = re.split(r"\n(?=[A-Za-z0-9#])", lock.read_text())
        pins = VENV / "requirements-without-torch.txt"
        pins.write_text("\n".join(block for block in blocks if not TORCH_PARTS.match(block)) + "\n")
        pip("install", "--no-deps", "--require-hashes", "-r", str(pins))
        torch = re.findall(r"^((?:torch|torchvision)==[^ \\\n;]+)", lock.read_text(), re.MULTILINE)
        pip("install", "--index-url", index, *torch)
    else:
        pip("install", "--require-hashes", "-r", str(lock))


def pip(*arguments: str) -> None:
    """Run uv, or the environment's pip."""
    uv = shutil.which("uv")
    command = (
        [uv, "pip", arguments[0], "--python", python()]
        if uv
        else [python(), "-m", "pip", arguments[0], "--disable-pip-version-check"]
    )
    if subprocess.run([*command, "--quiet", *arguments[1:]], cwd=ROOT, check=False).returncode:
        fail("the installation failed (reason above)", "check network and disk space, then run the same command again")


def python() -> str:
    """The environment's interpreter."""
    return str(VENV.resolve() / "bin" / "python")


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def fail(what: str, remedy: str) -> NoReturn:
    """End with what is wrong and what to do."""
    sys.exit(f"setup: {what}\n    {remedy}")


if __name__ == "__main__":
    main()
