"""Clients of a warm parent: under which settings they share one, and what they say when it is gone."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scalestudy.launch import warm
from scalestudy.launch.warm_parent import read_request


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """This process's umask, for a while."""
    before = os.umask(mask)
    yield
    os.umask(before)


@contextmanager
def one_core() -> Iterator[None]:
    """This process on one core, for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@contextmanager
def fewer_files() -> Iterator[None]:
    """A lower soft limit of open files, for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def openmp_variable() -> Iterator[None]:
    """A variable that OpenMP reads when torch loads it."""
    os.environ["OMP_PROC_BIND"] = "spread"
    yield
    del os.environ["OMP_PROC_BIND"]


@pytest.mark.parametrize("change", [lambda: umask(0o077), one_core, fewer_files, openmp_variable])
def test_a_parent_is_shared_only_under_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if change is one_core and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("this machine has one core")
    before = warm._address()
    monkeypatch.setenv("SCALESTUDY_DRIVER", "7:8")  # goes with the request
    assert warm._address() == before
    with change():  # type: ignore[attr-defined]
        assert warm._address() != before
    assert warm._address() == before


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        (b"", 1, "the warm parent process, which was making this run, was killed or failed"),
        (b"-9", 137, "the process that was making this run was killed by signal 9 (SIGKILL)"),
        (b"-15", 143, "killed by signal 15 (SIGTERM)"),
    ],
)
def test_a_killed_parent_or_child_is_reported(
    capsys: pytest.CaptureFixture[str], answer: bytes, status: int, message: str
) -> None:
    assert warm._exit_status(answer, Path("warm.log")) == status
    assert message in capsys.readouterr().err


def test_a_childs_own_status_is_passed_on_without_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert warm._exit_status(b"75", Path("warm.log")) == 75
    assert capsys.readouterr().err == ""


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    "sent", [b"\x00\x00\x00\x00\x00\x00\x10\x00", b"\x00\x00\x00\x00\x00\x00\x00\x05hello", b"\x00"]
)
def test_a_client_that_dies_in_its_request_leaves_no_descriptor_open(sent: bytes) -> None:
    client, server = socket.socketpair()
    before = open_files()
    socket.send_fds(client, [sent], [1, 2])
    client.shutdown(socket.SHUT_WR)
    assert read_request(server) is None
    assert open_files() == before
    client.close()
    server.close()


def test_a_runtime_folder_that_is_not_there_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nope")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert warm._folder().parent == tmp_path


def test_a_folder_too_deep_for_a_socket_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 150)
    deep.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(deep))
    with socket.socket(socket.AF_UNIX) as listener:
        address = warm._folder() / f"0123456789ab.{os.getpid()}"
        listener.bind(str(address))
    address.unlink()


def test_a_run_needs_no_warm_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nope")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nope"))
    monkeypatch.setattr(warm, "SHORT_FOLDER", "/nope")
    assert warm.call(["try"]) is None
    (tmp_path / f"scalestudy-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"scalestudy-{os.getuid()}").chmod(0o777)  # in which others could listen
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert warm.call(["try"]) is None
