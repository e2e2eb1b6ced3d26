from __future__ import annotations

import os
import subprocess
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
