"""Commands that are forked from a process which has imported Snakemake and other libraries, once for all tests.

For tests of what a command says and makes: each saves the time that importing takes, and a Snakemake that of its jobs too.
What a Python process inherits before it starts (LD_PRELOAD, LD_LIBRARY_PATH, limits) is that of the tests. A process whose
environment names code of its own (PYTHONPATH) imports this project's packages anew.

Runs and datasets of a forked Snakemake are made by the warm server that the tests share (tests/conftest.py), in place of
one for each driver.
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
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

LIBRARIES = ("snakemake.cli", "snakemake.workflow", "snakemake.executors.dryrun", "snakemake.executors.local",
             "snakemake.scheduling.milp", "pandas", "pyarrow.parquet", "pydantic", "jinja2", "psutil", "scipy.special", "yaml",
             "matplotlib.backends.backend_pdf", "matplotlib.backends.backend_svg",
             "scalestudy.analysis.compare", "scalestudy.dag", "scalestudy.cluster.plan.show", "scalestudy.commands.results",
             "scalestudy.commands.run", "scalestudy.commands.study", "scalestudy.figures.kinds", "scalestudy.launch.warm",
             "scalestudy.report.page", "scalestudy.report.verdicts",
             "snakemake_executor_plugin_multinode", "snakemake_logger_plugin_scalestudy")  # fmt: skip
OWN_PACKAGES = ("scalestudy", "snakemake_executor_plugin_multinode", "snakemake_logger_plugin_scalestudy")
ENTRIES = {"snakemake": ("snakemake.cli", "main"), "scalestudy": ("scalestudy.cli", "main")}
"""Of each command the function that its console script calls."""
CLIENT = """\
#!{python} -IS
import json, os, socket, sys

if os.environ.get("SCALESTUDY_WARM") == "0":
    os.execv({command!r}, [{command!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"\\n"], [1, 2])
    request = {{"words": [{command!r}, *sys.argv[1:]], "folder": os.getcwd(), "environment": dict(os.environ)}}
    server.sendall(json.dumps(request).encode() + b"\\n")
    sys.exit(int(server.makefile().readline() or 1))
"""
"""What stands in the place of a command. Without a warm server it is the command itself."""


@functools.cache
def commands() -> Path:
    """The folder of ENTRIES that are forked, for PATH; the server ends with this process. Ctrl-C is for the tests alone."""
    folder = Path(tempfile.mkdtemp(prefix="scalestudy-fork-"))
    address = str(folder / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        words, number = [sys.executable, __file__], listener.fileno()
        server = subprocess.Popen(
            [*words, str(number)], pass_fds=[number], stdin=subprocess.PIPE, start_new_session=True
        )
    for name in ENTRIES:
        command = str(Path(sys.executable).with_name(name))
        (folder / name).write_text(CLIENT.format(python=sys.executable, command=command, address=address))
        (folder / name).chmod(0o700)
    atexit.register(_end, server, folder)
    return folder


def _end(server: subprocess.Popen[bytes], folder: Path) -> None:
    """End it and the commands that it has forked."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    shutil.rmtree(folder, ignore_errors=True)


def _serve(listener: socket.socket) -> None:
    """For each connection fork a process that waits for a command's end, until standard input ends."""
    sys.path.pop(0)  # the folder of this file
    for name in LIBRARIES:
        importlib.import_module(name)
    # A collection of all that was imported would copy it page by page in every process.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection)
        connection.close()


def _answer(connection: socket.socket) -> NoReturn:
    """Fork the command and answer its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 2)
    request = json.loads(connection.makefile().readline())
    if (child := os.fork()) == 0:
        connection.close()
        _become(streams, **request)
    _, status = os.waitpid(child, 0)
    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def _become(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Be the process of a command, to its end."""
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # a library may have asked for it already
    own = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    for module in [name for name in sys.modules if own and name.partition(".")[0] in OWN_PACKAGES]:
        del sys.modules[module]
    program = Path(words[0])
    sys.path[:0] = [str(program.parent), *own]
    sys.argv = words
    if not own:
        _share_warm_server([program.name, *words[1:]])
    module, function = ENTRIES[program.name]
    sys.exit(getattr(importlib.import_module(module), function)())


def _share_warm_server(words: list[str]) -> None:
    """Let the jobs of this command use the tests' warm server, and prepare a dataset in it."""
    from scalestudy import processes
    from scalestudy.launch import warm

    driver = processes.driver()
    processes.announce_driver = lambda: os.environ.update({processes.DRIVER: driver})
    if words[:2] == ["scalestudy", "prepare"] and warm.is_wanted() and (status := warm.call(words[1:])) is not None:
        sys.exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
