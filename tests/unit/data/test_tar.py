from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from scalestudy.data import tar

NAMES = ["a.jpg", "folder/b.jpg", f"{'c' * 180}.jpg", f"{'d' * 90}/{'e' * 90}.jpg", "überall/図.jpg", "f" * 255]


def found(path: Path) -> dict[str, bytes]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return {
            os.fsdecode(member.name): os.pread(descriptor, member.size, member.start)
            for member in tar.entries(path)
            if member.is_file
        }
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("dialect", ["gnu", "pax", "v7", "ustar"])
def test_members_of_any_tar_are_found_where_they_lie(dialect: str, tmp_path: Path) -> None:
    names = [name for name in NAMES if dialect in ("gnu", "pax") or len(name.encode()) < 100]
    contents = {name: os.urandom(300 * number) for number, name in enumerate(names)}
    for name, data in contents.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    subprocess.run(["tar", f"--format={dialect}", "-cf", "x.tar", "-C", "in", *names], cwd=tmp_path, check=True)
    assert found(tmp_path / "x.tar") == contents


def test_pythons_tars_are_read_too_also_with_links_and_folders(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "link").symlink_to("one")
    with tarfile.open(tmp_path / "x.tar", "w") as stream:
        for name in (".", "one", "link"):
            stream.add(tmp_path / name, name, recursive=False)
    assert found(tmp_path / "x.tar") == {"one": b"1"}
    kinds = [(one.name, one.is_file) for one in tar.entries(tmp_path / "x.tar")]
    assert kinds == [(b"./", False), (b"one", True), (b"link", False)]


def test_what_we_write_is_a_tar_to_tar_and_to_python(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar.member("000.jpg", b"x" * 513) + tar.member("000.cls", b"7") + tar.END)
    listed = subprocess.run(["tar", "-tvf", str(path)], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in listed.stdout.splitlines()] == ["000.jpg", "000.cls"] and not listed.stderr
    with tarfile.open(path) as stream:
        assert [(member.name, member.size, member.mode) for member in stream] == [
            ("000.jpg", 513, 0o644), ("000.cls", 1, 0o644)
        ]  # fmt: skip
