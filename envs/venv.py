"""Make, repair or leave alone the project's `.venv`. Standard library only; called by the Makefile.

    python3 envs/venv.py [--dev]

The environment holds exactly what envs/requirements.txt (with --dev also envs/requirements-dev.txt) pins by hash, and
this project as an editable install. A clone that was moved is repaired in seconds: nothing is downloaded again.
TORCH_INDEX=URL takes torch and torchvision, at the pinned versions, from another index (a CPU-only build, for example).
LOCK=NAME installs envs/requirements-NAME.txt, or the file NAME, in place of envs/requirements.txt, also next time;
LOCK=default goes back. VENV=FOLDER puts the environment into that folder; `.venv` is then a link to it.
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
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "scalestudy.json"
LOCKS = {"run": ROOT / "envs" / "requirements.txt", "dev": ROOT / "envs" / "requirements-dev.txt"}
DEFAULT = "default"
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
    if folder := os.environ.get("VENV"):
        put_elsewhere(Path(folder).expanduser().absolute())
    known = read_stamp()
    lock = chosen_lock(os.environ.get("LOCK") or known.get("lock") or DEFAULT)
    if known and not works(known):
        known = {}
    if not known:
        create()
    elif known["path"] != str(place()):
        say(f"this clone was moved from {Path(known['path']).parent}: repairing .venv")
        repair(known["path"])
        known["path"], known["project"] = str(place()), ""
        write_stamp(known)
    for name in wanted:
        file = lock if name == "run" else LOCKS[name]
        if known.get(name) != digest(file):
            install(file)
            known = {**known, "path": str(place()), name: digest(file), "lock": name_of(lock)}
            write_stamp(known)
    project = f"{digest(ROOT / 'pyproject.toml')} {ROOT}"
    if known.get("project") != project:
        pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        write_stamp({**known, "project": project})
    # Compiled once; where it cannot be, it says so, and the slower fallback JPEG decoder is used.
    subprocess.run([python(), "-m", "scalestudy.data.decode.kernel.build"], cwd=ROOT, check=False)


def place() -> Path:
    """Where the environment lies: `.venv`, or the folder that it is a link to."""
    return VENV.resolve() if VENV.is_symlink() else VENV


def put_elsewhere(folder: Path) -> None:
    """Make `.venv` a link to a folder. What a site has removed there since is made anew."""
    if VENV.is_dir() and not VENV.is_symlink() and VENV.resolve() != folder.resolve():
        fail(
            "`.venv` is a folder here already",
            f"remove it (rm -r {VENV}), and run the same command again: it is made in {folder}",
        )
    if VENV.resolve() == folder.resolve():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / "pyvenv.cfg").is_file():
            fail(f"{folder} holds something else than an environment", "name a folder that is new or empty")
        VENV.unlink(missing_ok=True)
        VENV.symlink_to(folder)
    except OSError as error:
        fail(f"{folder} cannot be used: {error.strerror}", "name another folder: make setup VENV=FOLDER")


def chosen_lock(name: str) -> Path:
    """The lock file of what a run needs."""
    if name == DEFAULT:
        return LOCKS["run"]
    for file in (LOCKS["run"].with_name(f"requirements-{name}.txt"), Path(name).absolute()):
        if file.is_file() and name != "dev":
            return file
    known = [name_of(file) for file in sorted(LOCKS["run"].parent.glob("requirements-*.txt")) if file != LOCKS["dev"]]
    return fail(f"there is no lock file {name}", f"known: {', '.join([DEFAULT, *known])}, or the path of a file")


def name_of(lock: Path) -> str:
    """A lock file as LOCK names it."""
    if lock.parent != LOCKS["run"].parent:
        return str(lock)
    return lock.stem.removeprefix("requirements").removeprefix("-") or DEFAULT


def read_stamp() -> dict[str, str]:
    """What the environment was made from; empty where there is none."""
    try:
        return dict(json.loads(STAMP.read_text()))
    except (OSError, ValueError):
        return {}


def write_stamp(known: dict[str, str]) -> None:
    """Written after each step, so that an interrupted set-up resumes where it was."""
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
    say(f"making .venv with Python {sys.version.split()[0]}" + (f" in {place()}" if VENV.is_symlink() else ""))
    shutil.rmtree(place(), ignore_errors=True)
    # Not sys.executable: with the old environment active that is an interpreter which was just deleted.
    base = getattr(sys, "_base_executable", None) or sys.executable
    made = subprocess.run([base, "-m", "venv", str(place())], capture_output=True, text=True, check=False)
    if made.returncode:
        shutil.rmtree(place(), ignore_errors=True)
        lines = (made.stdout + made.stderr).strip().splitlines() or ["no reason given"]
        fail(f"no virtual environment can be made: {lines[0]}", "on Debian and Ubuntu: apt-get install python3-venv")


def install(lock: Path) -> None:
    """What a lock file pins."""
    begin = time.monotonic()
    index = os.environ.get("TORCH_INDEX")
    of_run = lock != LOCKS["dev"]
    large = " (torch and its CUDA libraries: about 5.5 GB)" if of_run and not index else ""
    say(f"installing what {lock.relative_to(ROOT) if lock.is_relative_to(ROOT) else lock} pins{large}")
    if index and of_run:
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
    made = subprocess.run([python(), "-m", "venv", "--without-pip", str(place())], capture_output=True, check=False)
    if made.returncode:
        fail("the environment cannot be repaired", f"delete {VENV}, then run the same command again")
    launcher = re.compile(LAUNCHER.format(re.escape(old)).encode())
    for script in (VENV / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        content = script.read_bytes()
        if found := launcher.match(content):
            mode = script.stat().st_mode
            script.write_bytes(head(place() / "bin" / found["name"].decode()) + content[found.end() :])
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
    return str(place() / "bin" / "python")


def digest(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def say(text: str) -> None:
    """A line for the person who waits."""
    print(f"setup: {text}", flush=True)


def fail(what: str, remedy: str) -> NoReturn:
    """End with what is wrong and what to do."""
    sys.exit(f"setup: {what}\n    {remedy}")


if __name__ == "__main__":
    main()
