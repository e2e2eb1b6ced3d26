"""An environment in one file: unpacked once per node, used by what a job starts there, removed when nobody uses it."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import time
from pathlib import Path

import pytest

from running import REAL, Cluster, drive
from snakemake_executor_plugin_multinode.packed import UNPACK, Packed
from snakemake_executor_plugin_multinode.software import Software
from snakemake_executor_plugin_multinode.status_files import StatusFiles
from test_jobscript import run, script

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="there is no `flock` here")
WHERE = "python -c 'import sys; print(sys.prefix)'"


def pack(folder: Path, name: str = "packed.tar") -> Path:
    """A new environment without packages, in one file."""
    made = folder / "made"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    subprocess.run(["tar", "-cf", str(folder / name), "-C", str(made), "."], check=True)
    shutil.rmtree(made)
    return folder / name


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packed environment, and a disk of the node, whose path needs quotes."""
    monkeypatch.setenv("NODES_DISK", str(tmp_path / "it's a disk"))
    return pack(tmp_path)


def job(folder: Path, archive: Path, command: str = WHERE) -> Path:
    """A job that unpacks an environment onto the node's disk."""
    folder.mkdir()
    return script(folder, command, setup=Software(packed=Packed(str(archive), "$NODES_DISK")).setup(None))


def unpacked(folder: Path) -> list[Path]:
    """The environments on the node's disk."""
    return sorted(path.parent.parent for path in folder.glob("it's a disk/*/*/bin/python"))


def test_jobs_that_begin_together_unpack_it_once_and_use_its_python(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tar").write_text(f'#!/bin/sh\necho >>{tmp_path}/calls\nexec {shutil.which("tar")} "$@"\n')
    (tmp_path / "bin/tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    scripts = [job(tmp_path / str(number), archive) / "job.sh" for number in range(4)]
    jobs = [subprocess.Popen(["bash", str(file)], stdout=subprocess.PIPE, text=True) for file in scripts]
    said = {process.communicate(timeout=60)[0].strip() for process in jobs}
    assert said == {str(path) for path in unpacked(tmp_path)}
    assert len(said) == 1
    assert (tmp_path / "calls").read_text() == "\n"


def test_another_node_unpacks_it_for_itself_by_any_shell(tmp_path: Path, archive: Path) -> None:
    text = run(job(tmp_path / "job", archive, f'printf %s "${UNPACK}"')).stdout
    other = {**os.environ, "NODES_DISK": str(tmp_path / "other disk")}
    done = subprocess.run(
        ["/bin/sh", "-c", f'{text}\n{WHERE}\n"$MULTINODE_PYTHON" -c "import sys; print(sys.prefix)"'],
        capture_output=True, text=True, check=True, env=other,
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith(str(tmp_path / "other disk"))


def test_an_earlier_one_is_removed_when_its_last_job_has_ended(tmp_path: Path, archive: Path) -> None:
    waiting = job(tmp_path / "1", archive, f"{WHERE}; touch began; while [ ! -e ../go ]; do sleep 0.1; done")
    first = subprocess.Popen(["bash", str(waiting / "job.sh")], stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (waiting / "began").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    (used,) = unpacked(tmp_path)
    second = Path(run(job(tmp_path / "2", pack(tmp_path, "second.tar"))).stdout.strip())
    assert unpacked(tmp_path) == sorted([used, second])
    (tmp_path / "1/go").touch()
    assert first.communicate(timeout=60)[0].strip() == str(used)
    third = Path(run(job(tmp_path / "3", pack(tmp_path, "third.tar"))).stdout.strip())
    assert unpacked(tmp_path) == [third]


def test_one_that_lacks_files_is_made_again_and_bytecode_is_no_reason(tmp_path: Path, archive: Path) -> None:
    place = Path(run(job(tmp_path / "1", archive)).stdout.strip())
    (place / "__pycache__").mkdir()
    (place / "__pycache__/a.pyc").touch()
    run(job(tmp_path / "2", archive))
    assert (place / "__pycache__/a.pyc").exists()
    (place / "pyvenv.cfg").unlink()
    assert run(job(tmp_path / "3", archive)).stdout.strip() == str(place)
    assert (place / "pyvenv.cfg").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "packed.tar cannot be read on "),
        ("no archive", "packed.tar cannot be unpacked into "),
        ("no Python", "does the node have that which it was made with?"),
        ("another's folder", "is not a folder that this user owns and can write to"),
    ],
)
def test_what_is_wrong_with_it_is_said_and_a_fault_of_the_node(
    tmp_path: Path, archive: Path, content: str | None, what: str
) -> None:
    if content == "no Python":
        (tmp_path / "made/bin").mkdir(parents=True)
        (tmp_path / "made/bin/python").symlink_to("/nowhere/python3.11")
        subprocess.run(["tar", "-cf", str(archive), "-C", str(tmp_path / "made"), "."], check=True)
    elif content == "another's folder":
        (tmp_path / "it's a disk").mkdir()
        (tmp_path / f"it's a disk/multinode-{os.getuid()}").symlink_to(tmp_path)
    else:
        archive.unlink() if content is None else archive.write_text(content)
    folder = job(tmp_path / "job", archive, "touch ran")
    done = run(folder)
    assert (done.returncode, (folder / "ran").exists()) == (78, False)
    assert what in done.stderr
    assert not unpacked(tmp_path)
    end = StatusFiles(folder / "marks").end("job")
    assert end is not None
    assert "multinode_unpack" in end.fault


@pytest.mark.slow
@pytest.mark.skipif(bool(REAL), reason="not every batch system hands environment variables on")
def test_the_job_of_a_workflow_runs_with_the_python_that_its_node_has_unpacked(
    cluster: Cluster, tmp_path: Path, archive: Path
) -> None:
    place = tmp_path / "made"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text("\n".join(path for path in [*site.getsitepackages(), *sys.path] if path))
    subprocess.run(["tar", "-cf", str(archive), "-C", str(place), "."], check=True)
    (tmp_path / "site.yaml").write_text(
        f"scheduler: {{kind: slurm}}\npacked: {{file: {archive.name}, folder: $NODES_DISK}}\n"
    )
    (tmp_path / "Snakefile").write_text(
        'rule a:\n    output: "a", "b"\n    run:\n        open("a", "w").write(__import__("sys").prefix)\n'
        "        shell(\"python -c 'import sys; print(sys.prefix)' >b\")\n"
    )
    done = drive(tmp_path, "--multinode-site", "site.yaml", "b")
    assert done.returncode == 0, done.stdout
    (used,) = unpacked(tmp_path)
    assert [(tmp_path / name).read_text().strip() for name in ("a", "b")] == [str(used)] * 2
