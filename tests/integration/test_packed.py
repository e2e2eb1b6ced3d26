"""A run over two nodes in a packed environment: each node unpacks it, and the agent there, whose children are the ranks, uses it."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

from snakemake_executor_plugin_multinode.packed import Packed
from snakemake_executor_plugin_multinode.software import Software, checked
from tests.integration import ssh_nodes
from tests.integration.tries import ROOT, made, result

pytestmark = pytest.mark.slow
NOTE = """\
import sys; open(sys.prefix + ".used", "a").write(open("/proc/self/cmdline").read().replace("\\0", " ") + "\\n")
"""


def small_clone(folder: Path) -> Path:
    """A clone whose small environment sees the packages of this one, and notes each process that uses it."""
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "shared.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT / "workflow"), NOTE]))
    command = environment / "bin" / "scalestudy"
    command.write_text(f"#!{environment}/bin/python\nfrom scalestudy.cli import main\nmain()\n")
    command.chmod(0o755)
    (environment / "scalestudy.json").write_text(json.dumps({"path": str(environment)}))
    (folder / "envs").mkdir()
    shutil.copy(ROOT / "envs/venv.py", folder / "envs")
    return folder


def test_every_process_of_a_run_uses_the_environment_that_its_own_node_has_unpacked(tmp_path: Path) -> None:
    ssh_nodes.needs("flock")
    clone = small_clone(tmp_path / "clone")
    pack = [sys.executable, str(clone / "envs/venv.py"), "--pack", str(tmp_path / "packed.tar")]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(clone)
    out, disk = tmp_path / "out", tmp_path / "disk of the first"
    with ssh_nodes.sshd(tmp_path / "ssh", str(tmp_path)) as programs:
        (tmp_path / "site.yaml").write_text("hosts: [alpha, beta]\n")
        job = [
            'setup_failed() { echo "failed $1: $2"; exit 78; }',
            checked(Software(packed=Packed(str(tmp_path / "packed.tar"))).setup(None)),
            f"exec scalestudy try ranks=2 nodes=2 strategy=allreduce train.epochs=2 --out '{out}'",
        ]
        more = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SCALESTUDY_SITE": str(tmp_path / "site.yaml"),
            "SCALESTUDY_LOCKS": str(tmp_path),
            "SCALESTUDY_WARM": "0",
            "TMPDIR": str(disk),
        }
        done = subprocess.run(
            ["bash", "-c", "\n".join(job)],
            cwd=ROOT, env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
    assert made(done.returncode, done.stdout), done.stdout
    assert result(out)["launch"] == {"launcher": "ssh", "hosts": ["alpha", "beta"]}
    for node, processes in (
        (disk, ("/bin/scalestudy try ", " agent ")),
        (tmp_path / "ssh/beta", (" agent ",)),
    ):
        (used,) = node.glob("multinode-*/*[0-9].used")  # not of the one whose Python was tried before it had its place
        for process in processes:
            assert process in used.read_text(), (process, used.read_text())
