"""Horovod, compiled for this machine's torch into a separate folder; the environment of scalestudy stays as it is.

Horovod has no wheels, and its last release knows no torch as new as ours. It compiles once its sources ask for the C++
standard that torch's headers are written in.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError
from scalestudy.files import read_json, write_json
from scalestudy.locks import exclusive

VERSION = "0.28.1"
SDIST = f"horovod=={VERSION} --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
ARCHIVE = f"horovod-{VERSION}.tar.gz"
TOOLS = ("setuptools<81", "wheel", "packaging", "cmake<4")
"""What its set-up script needs and ours does not have: newer setuptools lack pkg_resources, newer CMakes its policies."""
LIMIT_S = 3600
NO_TOOLS, NO_SOURCES = "its build tools could not be downloaded", "its sources could not be downloaded"
NO_COMPILER = "there is no C++ compiler"
OF_NETWORK = (NO_TOOLS, NO_SOURCES)
"""Begins of the reasons that a download gives."""
BUILD = "scalestudy build horovod"


@dataclass(frozen=True)
class Toolchain:
    """What a build depends on."""

    torch: str
    python: str
    compiler: str
    mpi: bool
    nccl: bool

    @property
    def folder(self) -> Path:
        """Where the build of this toolchain lies, in the user's cache."""
        with_ = "".join(f"-{name}" for name, there in (("mpi", self.mpi), ("nccl", self.nccl)) if there)
        return cache() / f"horovod-{VERSION}-torch{self.torch}-{self.python}-{self.compiler}{with_}"


def cache() -> Path:
    """The user's cache folder of scalestudy."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scalestudy"


def downloads() -> Path:
    """Where `fetch_sources` keeps what a build downloads, for this Python."""
    return cache() / f"horovod-{VERSION}-{_python()}-downloads"


def are_fetched() -> bool:
    """Whether a build needs no network."""
    return (downloads() / ARCHIVE).is_file()


def fetch_sources() -> Path:
    """Download what a build needs, for jobs on nodes without internet; the folder. Raises UserError where that fails."""
    folder = downloads()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        exclusive(folder.with_name(f"{folder.name}.lock"), "a download of what Horovod is built from"),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".horovod-") as name,
    ):
        work, files = Path(name), Path(name) / "files"
        if are_fetched():
            return folder
        try:
            _pip(work, "download", "--dest", str(files), *TOOLS)
            _pip(work, "install", "--no-index", "--find-links", str(files), "--target", str(work / "tools"), *TOOLS)
            _download(work, files)
        except (OSError, subprocess.SubprocessError) as error:
            what = f"what Horovod is built from cannot be downloaded: {_last_line(work, error)}"
            raise UserError(what, "fetch", "check the network of this host, then run the same command again") from None
        shutil.rmtree(folder, ignore_errors=True)
        files.rename(folder)
    return folder


def toolchain() -> Toolchain | None:
    """The toolchain of this machine; None without a C++ compiler."""
    compiler = _compiler()
    if compiler is None:
        return None
    version = subprocess.run(
        [compiler, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False
    )
    name = f"{Path(compiler).name.replace('+', 'x')}{version.stdout.strip()}"
    nvcc, nccl = shutil.which("nvcc"), os.environ.get("HOROVOD_NCCL_HOME")
    with_nccl = nvcc is not None and (nccl is not None or Path("/usr/include/nccl.h").exists())
    return Toolchain(_torch(), _python(), name, shutil.which("mpicxx") is not None, with_nccl)


def found() -> Path | None:
    """The folder to put on the path of Python for `import horovod`; None where there is no build for torch and Python.

    The present toolchain's build is taken first, else another compiler's: it needs no compiler to be used.
    """
    now = toolchain()
    builds = [now.folder] if now else []
    builds += sorted(cache().glob(f"horovod-{VERSION}-torch{_torch()}-{_python()}-*"))
    return next((folder / "site" for folder in builds if (folder / "site" / "horovod").is_dir()), None)


def missing() -> str | None:
    """Why Horovod cannot be imported here and what to do about it; None where it can."""
    if found() is not None:
        return None
    then = f"run `{BUILD}` (minutes), then `scalestudy forget --skipped`"
    now = toolchain()
    if now is None:
        return f"Horovod is not built here, and there is no C++ compiler: install one, {then}"
    record = now.folder / "build.json"
    if record.exists():
        return f"Horovod could not be built here: {read_json(record)['reason']}; fix this, {then}"
    return f"Horovod is not built here: {then}"


def build() -> dict[str, Any]:
    """Build Horovod unless that is done; returns the content of its `build.json`: status, reason, toolchain, seconds.

    A failure is a result too: it would come out the same next time.
    """
    now = toolchain()
    if now is None:
        return {"status": "failed", "reason": NO_COMPILER}
    record = now.folder / "build.json"
    with exclusive(now.folder.with_name(f"{now.folder.name}.lock"), "a build of Horovod"):
        if (now.folder / "site").is_dir():
            done: dict[str, Any] = read_json(record)
            return done
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(dir=now.folder.parent, prefix=".horovod-") as name:
            work = Path(name)
            reason = _attempt(now, work)
            seconds = round(time.monotonic() - begin, 1)
            result = {
                "status": "built" if reason is None else "failed",
                "reason": reason,
                **vars(now),
                "seconds": seconds,
            }
            now.folder.mkdir(parents=True, exist_ok=True)
            for part in ("build.log", "wheel", "site"):
                if (work / part).exists() and (reason is None or part == "build.log"):
                    (work / part).rename(now.folder / part)
        write_json(record, result)
    return result


def _attempt(now: Toolchain, work: Path) -> str | None:
    """Fetch, change, compile, install below `work`; None, or why it went wrong."""
    steps: list[tuple[str, Callable[[], None]]] = [
        (
            NO_TOOLS,
            lambda: _pip(work, "install", *_fetched(), "--target", str(work / "tools"), *TOOLS),
        ),
        (NO_SOURCES, lambda: _fetch(work)),
        ("its sources are not as expected", lambda: _adapt(work / f"horovod-{VERSION}", now)),
        ("it did not compile", lambda: _compile(now, work)),
        ("its wheel could not be installed", lambda: _install(work)),
    ]
    for what, step in steps:
        try:
            step()
        except (OSError, UserError, subprocess.SubprocessError, tarfile.TarError) as error:
            return f"{what} ({_last_line(work, error)}; {now.folder / 'build.log'})"
    return None


def _fetched() -> list[str]:
    """Options of pip by which it takes what was downloaded before; none where nothing was."""
    return ["--no-index", "--find-links", str(downloads())] if are_fetched() else []


def _download(work: Path, folder: Path) -> None:
    """The archive of the sources, by its hash."""
    requirement = work / "requirement.txt"
    requirement.write_text(SDIST + "\n", encoding="utf-8")
    options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes")
    _pip(work, "download", *_fetched(), *options, "--dest", str(folder), "-r", str(requirement))


def _fetch(work: Path) -> None:
    _download(work, work)
    with tarfile.open(work / ARCHIVE) as archive:
        # Python 3.11.4 and later have the filter; what is unpacked is what SDIST's hash names, with or without it.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(work)


def _adapt(source: Path, now: Toolchain) -> None:
    """The standard of C++ that torch's headers need; no debug information; and no CUDA, where only half of it is there."""
    _replace(source / "setup.py", "'RelWithDebInfo'", "'Release'")
    for file in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        _replace(source / file, "CMAKE_CXX_STANDARD 14", "CMAKE_CXX_STANDARD 20")
    if not now.nccl:
        _replace(source / "cmake/Modules/FindPytorch.cmake", "torch.version.cuda is not None", "False")


def _replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    if old not in text:
        raise UserError(f"{file.name} does not hold `{old}`")
    file.write_text(text.replace(old, new), encoding="utf-8")


def _compile(now: Toolchain, work: Path) -> None:
    options = {
        "HOROVOD_WITH_PYTORCH": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if now.mpi else "HOROVOD_WITHOUT_MPI": "1",
        "MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}",
        **({"HOROVOD_GPU_OPERATIONS": "NCCL"} if now.nccl else {}),
    }
    source = str(work / f"horovod-{VERSION}")
    _pip(work, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work / "wheel"), source, **options)


def _install(work: Path) -> None:
    (wheel,) = (work / "wheel").glob("horovod-*.whl")
    _pip(work, "install", "--no-deps", "--no-index", "--target", str(work / "site"), str(wheel))


def _pip(work: Path, *arguments: str, **environment: str) -> None:
    """pip of this Python, with the build tools before its own packages; what it says goes to build.log."""
    tools = os.pathsep.join([str(work / "tools"), *filter(None, [os.environ.get("PYTHONPATH")])])
    path = os.pathsep.join([str(work / "tools" / "bin"), os.environ.get("PATH", "")])
    variables = {**os.environ, "PYTHONPATH": tools, "PATH": path, "TMPDIR": str(work), **environment}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    with open(work / "build.log", "ab") as log:
        subprocess.run(command, env=variables, stdout=log, stderr=log, check=True, timeout=LIMIT_S)


def _last_line(work: Path, error: Exception) -> str:
    """The most telling line: the last error that a tool reported."""
    log = work / "build.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    errors = [line.strip() for line in lines if "error" in line.lower()]
    return errors[-1][:200] if errors and isinstance(error, subprocess.SubprocessError) else str(error)[:200]


def _compiler() -> str | None:
    wanted = [os.environ.get("CXX"), "g++", "c++"]
    return next((path for name in wanted if name and (path := shutil.which(name))), None)


def _torch() -> str:
    return importlib.metadata.version("torch")


def _python() -> str:
    return str(sysconfig.get_config_var("SOABI") or f"cp{sys.version_info.major}{sys.version_info.minor}")
