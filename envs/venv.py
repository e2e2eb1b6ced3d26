"""Make, repair or leave alone the project's `.venv`. Standard library only; called by the Makefile.

    python3 envs/venv.py [--dev]

The environment holds exactly what envs/requirements.txt (with --dev also envs/requirements-dev.txt) pins by hash, and
this project as an editable install. A clone that was moved is repaired in seconds: nothing is downloaded again.
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
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "scalestudy.json"
LOCKS = {"run": ROOT / "envs" / "requirements.txt", "dev": ROOT / "envs" / "requirements-dev.txt"}
TORCH_PARTS = re.compile(r"^(torch|torchvision|triton|nvidia-|cuda-)")
UNQUOTABLE = set(':"$`\\\t\n\r')
LONGEST_FIRST_LINE = 127
LAUNCHER = r"""#!(?:/bin/sh\n'''exec' )?"?{}/bin/(?P<name>python[0-9.]*)"?(?: "\$0" "\$@"\n' ''')?\n"""
"""How a launcher begins, of the environment at a path."""


def main() -> None:
    """Bring `.venv` to what the lock files say."""
    wanted = ["run", "dev"] if "--dev" in sys.argv[1:] else ["run"]
    if sys.version_info < (3, 11):
        fail(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}", "make PYTHON=python3.12 run")
    refuse_path()
    known = read_stamp()
    if known and not works(known):
        known = {}
    if not known:
        create()
    elif known["path"] != str(VENV):
        say(f"this clone was moved from {Path(known['path']).parent}: repairing .venv")
        repair(known["path"])
        known["path"], known["project"] = str(VENV), ""
        write_stamp(known)
    for name in wanted:
        if known.get(name) != digest(LOCKS[name]):
            install(LOCKS[name])
            known = {**known, "path": str(VENV), name: digest(LOCKS[name])}
            write_stamp(known)
    if known.get("project") != digest(ROOT / "pyproject.toml"):
        pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        write_stamp({**known, "project": digest(ROOT / "pyproject.toml")})
    # Compiled once; where it cannot be, it says so, and pictures are decoded the plain way.
    subprocess.run([python(), "-m", "scalestudy.data.decode.kernel.build"], cwd=ROOT, check=False)


def read_stamp() -> dict[str, str]:
    """What the environment was made from; empty where there is none."""
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError):
        return {}


def write_stamp(known: dict[str, str]) -> None:
    """Written after each step, so that an interrupted set-up goes on where it was."""
    temporary = STAMP.with_suffix(".tmp")
    temporary.write_text(json.dumps(known))
    temporary.replace(STAMP)


def works(known: dict[str, str]) -> bool:
    """Whether the interpreter that the environment was made with is still there."""
    try:
        return (
            "path" in known and subprocess.run([python(), "-c", ""], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def create() -> None:
    """A new, empty environment."""
    say(f"making .venv with Python {sys.version.split()[0]}")
    shutil.rmtree(VENV, ignore_errors=True)
    # Not sys.executable: with the old environment active that is an interpreter which was just deleted.
    base = getattr(sys, "_base_executable", None) or sys.executable
    made = subprocess.run([base, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        lines = (made.stdout + made.stderr).strip().splitlines() or ["no reason given"]
        fail(f"no virtual environment can be made: {lines[0]}", "on Debian and Ubuntu: apt-get install python3-venv")


def install(lock: Path) -> None:
    """What a lock file pins."""
    begin = time.monotonic()
    index = os.environ.get("TORCH_INDEX")
    large = " (torch and its CUDA libraries: about 5.5 GB)" if lock == LOCKS["run"] and not index else ""
    say(f"installing what {lock.relative_to(ROOT)} pins{large}")
    if index and lock == LOCKS["run"]:
        pins = without_torch(lock)
        pip("install", "--no-deps", "--require-hashes", "-r", str(pins))
        pins.unlink()
        pip("install", "--index-url", index, *torch_pins(lock))
    else:
        pip("install", "--require-hashes", "-r", str(lock))
    say(f"done in {time.monotonic() - begin:.0f} s")


def without_torch(lock: Path) -> Path:
    """The lock file less torch and what only torch needs."""
    blocks = re.split(r"\n(?=[A-Za-z0-9#])", lock.read_text())
    kept = VENV / "requirements-without-torch.txt"
    kept.write_text("\n".join(block for block in blocks if not TORCH_PARTS.match(block)) + "\n")
    return kept


def torch_pins(lock: Path) -> list[str]:
    """`torch==…`, `torchvision==…` as pinned."""
    return re.findall(r"^((?:torch|torchvision)==[^ \\\n;]+)", lock.read_text(), re.MULTILINE)


def refuse_path() -> None:
    """End where no environment can work: what pip writes into launchers does not survive these characters."""
    found = sorted(set(str(ROOT)) & UNQUOTABLE)
    if found:
        fail(
            f"no virtual environment works at a path with {' or '.join(map(repr, found))}: {str(ROOT)!r}",
            "move this clone to another folder; blanks and letters of any language are fine",
        )


def repair(old: str) -> None:
    """Put the new path in place of the old one: venv writes its own files anew, with the quotes that the path needs."""
    made = subprocess.run([python(), "-m", "venv", "--without-pip", str(VENV)], capture_output=True, check=False)
    if made.returncode:
        fail("the environment cannot be repaired", f"delete {VENV}, then run the same command again")
    launcher = re.compile(LAUNCHER.format(re.escape(old)).encode())
    for script in (VENV / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if found := launcher.match(content):
            mode = script.stat().st_mode
            script.write_bytes(head(VENV / "bin" / found["name"].decode()) + content[found.end() :])
            script.chmod(mode)


def head(interpreter: Path) -> bytes:
    """The first lines of a launcher, as pip writes them: the kernel reads no blanks, and only so many characters."""
    line = f"#!{interpreter}\n".encode()
    if b" " not in line and len(line) <= LONGEST_FIRST_LINE:
        return line
    return f"#!/bin/sh\n'''exec' \"{interpreter}\" \"$0\" \"$@\"\n' '''\n".encode()


def pip(*arguments: str) -> None:
    """Run the environment's pip; its output is shown where it fails."""
    command = [python(), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        fail(
            "pip could not install it (its words are above)",
            "check network and disk space, then run the same command again",
        )


def python() -> str:
    """The environment's interpreter."""
    return str(VENV / "bin" / "python")


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def say(text: str) -> None:
    """A line for the person who waits."""
    print(f"setup: {text}", flush=True)


def fail(what: str, remedy: str) -> None:
    """End with what is wrong and what to do."""
    sys.exit(f"setup: {what}\n    {remedy}")


if __name__ == "__main__":
    main()
