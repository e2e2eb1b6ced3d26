"""Two nodes that ssh reaches, on this host alone, as any user can have them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

PATH = f"{os.environ['PATH']}:/usr/sbin"


def needs(*programs: str) -> None:
    """Leave the test out where a program is missing."""
    for program in programs:
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"there is no `{program}` here (envs/debian-packages.txt)")


def programs(folder: Path) -> Path:
    """A folder with an `ssh` that reaches alpha and beta: each connection starts an sshd of its own, without a port.

    The wrapper only adds the client's configuration, for which ssh knows no variable. Each node has a TMPDIR of its own.
    """
    needs("sshd", "ssh", "ssh-keygen")
    if os.geteuid() == 0:  # a root's sshd insists on this empty folder; it stays, as others may use it meanwhile
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    (folder / "bin").mkdir(parents=True)
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    for node in ("alpha", "beta"):
        (folder / node).mkdir()
        (folder / f"{node}.conf").write_text(
            f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
            f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            f"SetEnv TMPDIR={folder}/{node}\n"
        )
    (folder / "ssh_config").write_text(
        f"Host alpha beta\n"
        f"  ProxyCommand {shutil.which('sshd', path=PATH)} -i -E {folder}/%n.log -f {folder}/%n.conf\n"
        f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o700)
    return folder / "bin"
