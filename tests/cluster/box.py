"""A private box for real schedulers: Linux namespaces with a loopback of their own, one ordinary user, and no trace.

Daemons in the box listen on the box's loopback, which nothing outside can reach; what they write to /etc, /var and /run
lies in a folder of the box; and when the box ends, the kernel ends every process in it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

USER = "alice"
USER_ID = 21500 + os.getpid() % 8000
"""Of its own for each process: the kernel's control groups of two boxes would meet under one user."""
NEEDED = ("unshare", "setpriv", "nsenter", "runuser", "ip", "mount")
PRIVATE = ("/etc", "/var/lib", "/var/spool", "/var/log")


class Unavailable(Exception):
    """A box cannot be made here; the message says why."""


class Box:
    """One box. `stop` ends every process in it and removes its folder."""

    def __init__(self, repository: Path, host: str = "box", address: str = "10.77.0.1") -> None:
        if os.geteuid() != 0:
            raise Unavailable("needs root, to start schedulers and to run jobs as another user")
        if missing := [command for command in NEEDED if not shutil.which(command)]:
            raise Unavailable(f"needs the commands {', '.join(missing)}")
        self.folder = Path(tempfile.mkdtemp(prefix="scalestudy-box-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.home = self.folder / "home"
        self.host = host
        self.environment: dict[str, str] = {}
        namespaces = ("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child")
        script = self._script(repository, host, address)
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *namespaces, "bash", "-euc", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            if line == "the box is ready\n":
                break
            said.append(line)
        else:
            self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise Unavailable(f"namespaces cannot be made here: {' '.join(said).strip()}")
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.init = int(children[0])
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        """Start the daemons of a scheduler."""

    def _script(self, repository: Path, host: str, address: str) -> str:
        lines = ["mount --make-rprivate /", "mount -t proc proc /proc"]
        for number, path in enumerate(PRIVATE):
            upper, work = self.folder / f"upper{number}", self.folder / f"work{number}"
            upper.mkdir()
            work.mkdir()
            lines.append(f"mount -t overlay overlay -o lowerdir={path},upperdir={upper},workdir={work} {path}")
        lines.append("mount -t tmpfs -o mode=755 tmpfs /run")
        for closed in _closed_to_others([repository, Path(sys.prefix), Path(sys.base_prefix)]):
            lines += _opened(closed, self.folder / f"stash{len(lines)}")
        lines += [
            f"hostname {host}",
            "ip link set lo up",
            # Schedulers resolve names by the addresses that a host has, and 127.0.0.1 does not count.
            f"ip addr add {address}/32 dev lo",
            f"printf '127.0.0.1 localhost\\n{address} {host}\\n' >/etc/hosts",
            f"useradd --uid {USER_ID} --home-dir {self.home} --create-home --shell /bin/bash {USER}",
            "echo the box is ready",
            "exec >/dev/null 2>&1",
            # The first process of a box collects the orphans.
            "while :; do sleep 3600 & wait $! || true; done",
        ]
        return "\n".join(lines)

    def command(
        self, argv: Sequence[str], user: str | None = None, folder: Path | None = None, **more: str
    ) -> list[str]:
        """The command line that runs `argv` in the box."""
        environment = {**self.environment, **more}
        inner = ["env", *(f"{key}={value}" for key, value in environment.items()), *argv]
        place = shlex.quote(str(folder or self.home))
        words = ["nsenter", "-t", str(self.init), "-m", "-n", "-u", "-p", "--"]
        if user is not None:
            words += ["runuser", "-u", user, "--"]
        return [*words, "bash", "-c", f"cd {place} && exec {shlex.join(inner)}"]

    def run(
        self,
        argv: Sequence[str],
        user: str | None = None,
        folder: Path | None = None,
        timeout: float = 120,
        **more: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the box; standard error comes with standard output."""
        return subprocess.run(
            self.command(argv, user, folder, **more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )

    def must(self, argv: Sequence[str], user: str | None = None, **more: str) -> str:
        """Run a command that has to succeed."""
        done = self.run(argv, user, Path("/"), **more)
        if done.returncode != 0:
            raise AssertionError(f"{shlex.join(argv)}: {done.returncode}\n{done.stdout}")
        return done.stdout

    def until(self, argv: Sequence[str], wanted: str, limit_s: float = 60) -> str:
        """Repeat a command until its output has the wanted text."""
        end = time.monotonic() + limit_s
        while True:
            said = self.run(argv, folder=Path("/")).stdout
            if wanted in said:
                return said
            if time.monotonic() > end:
                raise AssertionError(f"{shlex.join(argv)} never said {wanted!r}, last:\n{said}")
            time.sleep(0.2)

    def lay_cable(self, tail: str) -> None:
        """A second host: its own network, with one cable to the first. Neither reaches out of the box."""
        commands = f"""\
            ip netns add {tail}
            ip link add head0 type veth peer name tail0 netns {tail}
            ip addr add 10.78.0.1/24 dev head0
            ip link set head0 up
            ip -n {tail} addr add 10.78.0.2/24 dev tail0
            ip -n {tail} link set tail0 up
            ip -n {tail} link set lo up
            printf '127.0.0.1 localhost\\n10.78.0.1 {self.host}\\n10.78.0.2 {tail}\\n' >/etc/hosts"""
        self.must(["bash", "-euc", commands])

    def on_second_host(self, tail: str, script: str) -> list[str]:
        """The command line that runs a line of shell on the second host."""
        return ["nsenter", f"--net=/run/netns/{tail}", "unshare", "--uts", "sh", "-c", f"hostname {tail} && {script}"]

    def kill_script(self, script: str, parent: str) -> None:
        """SIGKILL to the process of this box that runs a job's script, and to nothing else of the job.

        `script` is the end of the script's path; subshells have it too, but another parent than the scheduler's.
        """
        ours = Path(f"/proc/{self.init}/ns/pid").readlink()
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                of_script = any(word.endswith(script) for word in process.cmdline())
                if not of_script or Path(f"/proc/{process.pid}/ns/pid").readlink() != ours:
                    continue
                above = process.parent()
                if above is not None and above.name().startswith(parent):
                    process.kill()
                    return
        raise AssertionError(f"nothing runs {script} below {parent}")

    def stop(self) -> None:
        """End the box with all that is in it."""
        self.process.kill()  # the first process of the box dies with it, and every other with that one
        self.process.wait()
        for _ in range(50):
            if not Path(f"/proc/{self.init}").exists():
                break
            time.sleep(0.1)
        shutil.rmtree(self.folder, ignore_errors=True)


def _closed_to_others(paths: Sequence[Path]) -> list[Path]:
    """Folders above these paths that other users cannot pass, outermost first."""
    above = {parent for path in paths for parent in path.resolve().parents}
    above |= {parent for path in paths for parent in path.absolute().parents}
    return sorted(
        (folder for folder in above if not folder.stat().st_mode & 0o001), key=lambda folder: len(folder.parts)
    )


def _opened(folder: Path, stash: Path) -> list[str]:
    """Commands that let others pass a folder, in the box alone: the same content under a folder of another mode."""
    old, new = shlex.quote(str(stash)), shlex.quote(str(folder))
    return [
        f"mkdir {old} && mount --bind {new} {old} && mount -t tmpfs -o mode=755 tmpfs {new}",
        f'find {old} -mindepth 1 -maxdepth 1 -printf "%f\\n" | while IFS= read -r name; do',
        f'  if [ -L {old}/"$name" ]; then cp -P {old}/"$name" {new}/; '
        f'elif [ -d {old}/"$name" ]; then mkdir {new}/"$name"; mount --bind {old}/"$name" {new}/"$name"; '
        f'elif [ -f {old}/"$name" ]; then : >{new}/"$name"; mount --bind {old}/"$name" {new}/"$name"; fi',
        "done",
    ]
