"""Commands in processes that are forked from one which has imported Snakemake and other libraries, once for all tests.

For tests of what a command says and makes: each saves the time that importing takes. A process whose environment names
code of its own (PYTHONPATH) imports this project's packages anew. What a process inherits from its environment before
Python starts (LD_PRELOAD, LD_LIBRARY_PATH) is that of the tests.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LIBRARIES = ("snakemake.cli", "snakemake.workflow", "snakemake.executors.dryrun", "snakemake.executors.local",
             "snakemake.scheduling.milp", "pandas", "pyarrow.parquet", "pydantic", "jinja2", "psutil", "scipy.special", "yaml",
             "scalestudy.dag", "scalestudy.cluster.plan.show", "scalestudy.commands.study", "scalestudy.commands.results",
             "snakemake_executor_plugin_multinode", "snakemake_logger_plugin_scalestudy")  # fmt: skip
OWN_PACKAGES = ("scalestudy", "snakemake_executor_plugin_multinode", "snakemake_logger_plugin_scalestudy")
ENTRIES = {"snakemake": ("snakemake.cli", "main"), "scalestudy": ("scalestudy.cli", "main")}
"""Of each command the function that its console script calls."""


def run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` of one of ENTRIES; standard error comes with standard output."""
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / "said"
        request = {
            "command": list(command),
            "folder": str(folder),
            "environment": dict(environment),
            "output": str(output),
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request).encode() + b"\n")
        if not select.select([server.stdout], [], [], timeout)[0]:
            _end(server)
            _server.cache_clear()
            raise subprocess.TimeoutExpired(list(command), timeout, output.read_bytes())
        answer = server.stdout.readline()
        assert answer, "the fork server has ended; what it said is in the output of the tests"
        return subprocess.CompletedProcess(list(command), int(answer), output.read_text())


@functools.cache
def _server() -> subprocess.Popen[bytes]:
    """The process that forks; it ends with this one. A session of its own: Ctrl-C is for the tests."""
    command = [sys.executable, __file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True)
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[bytes]) -> None:
    """End it and the command that it has forked."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _serve() -> None:
    """Fork a process for each line of standard input; answer its exit status."""
    sys.path.pop(0)  # the folder of this file
    for name in LIBRARIES:
        importlib.import_module(name)
    # A collection of all that was imported would copy it page by page in every process.
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        if (child := os.fork()) == 0:
            _become(**json.loads(line))
        _, status = os.waitpid(child, 0)
        os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(command: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    """Be the process of a command, to its end."""
    with open(output, "wb") as said, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # a library may have asked for it already
    program = shutil.which(command[0])
    assert program is not None, command
    own = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    for module in [name for name in sys.modules if own and name.partition(".")[0] in OWN_PACKAGES]:
        del sys.modules[module]
    sys.path[:0] = [str(Path(program).parent), *own]
    sys.argv = [program, *command[1:]]
    module, function = ENTRIES[command[0]]
    sys.exit(getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    _serve()
