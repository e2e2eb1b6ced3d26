"""Two nodes that ssh reaches, on this host alone, as any user can start and stop them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def needs(*programs: str) -> None:
    """Leave the test out where a program is missing."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    for program in programs:
        if shutil.which(program, path=path) is None:
            pytest.skip(f"there is no `{program}` here (envs/debian-packages.txt)")


def free_ports(count: int) -> list[int]:
    """Ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for_port(port: int, daemon: subprocess.Popen[bytes], log: Path) -> None:
    """Until something listens there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and daemon.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(log.read_text(errors="replace"))


@contextmanager
def sshd(folder: Path) -> Iterator[Path]:
    """Two sshds on loopback with keys of their own; yields a folder with an `ssh` that reaches them as alpha and beta.

    The wrapper only adds the client's configuration, for which ssh knows no variable. Each has a TMPDIR of its own.
    """
    needs("sshd", "ssh", "ssh-keygen")
    if os.geteuid() == 0:  # a root's sshd insists on this empty folder; it stays, as others may use it meanwhile
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    (folder / "bin").mkdir(parents=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    alpha, beta = free_ports(2)
    (folder / "ssh_config").write_text(
        f"Host alpha\n  Port {alpha}\nHost beta\n  Port {beta}\n"
        f"Host alpha beta\n  HostName 127.0.0.1\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o700)
    with _one_sshd(folder, "alpha", alpha), _one_sshd(folder, "beta", beta):
        yield folder / "bin"


@contextmanager
def _one_sshd(folder: Path, node: str, port: int) -> Iterator[None]:
    (folder / node).mkdir()
    configuration = folder / f"{node}.conf"
    configuration.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin prohibit-password\nSetEnv TMPDIR={folder}/{node}\n"
    )
    log = folder / f"{node}.log"
    command = [str(shutil.which("sshd", path="/usr/sbin:/usr/bin")), "-D", "-e", "-f", str(configuration)]
    with open(log, "wb") as output:
        daemon = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for_port(port, daemon, log)
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
