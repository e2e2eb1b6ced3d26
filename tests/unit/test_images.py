"""The two descriptions of an image agree with the lock file, with each other, and with what a site file expects.

What they say is looked at; no image is built, which needs Docker or Apptainer.
"""

from __future__ import annotations

import re

import pytest

from snakemake_executor_plugin_multinode.site import Container
from tests.conftest import ROOT

DOCKER = (ROOT / "envs/Dockerfile").read_text()
APPTAINER = (ROOT / "envs/scalestudy.def").read_text()
BOTH = pytest.mark.parametrize("text", [DOCKER, APPTAINER], ids=["Docker", "Apptainer"])


def section(name: str) -> list[str]:
    found = re.search(rf"^%{name}\n(.*?)(?=^%|\Z)", APPTAINER, re.MULTILINE | re.DOTALL)
    return [line.strip() for line in found[1].splitlines() if line.strip() and not line.strip().startswith("#")]


def packages(text: str) -> list[str]:
    (line,) = re.findall(r"apt-get install -y --no-install-recommends (.*?)(?: \\)?$", text, re.MULTILINE)
    return str(line).split()


def test_both_have_the_same_base_and_packages_which_debian_packages_lists() -> None:
    (docker,) = re.findall(r"^FROM (\S+)$", DOCKER, re.MULTILINE)
    (apptainer,) = re.findall(r"^From: (\S+)$", APPTAINER, re.MULTILINE)
    assert docker == apptainer
    assert packages(DOCKER) == packages(APPTAINER)
    assert set(packages(DOCKER)) <= set((ROOT / "envs/debian-packages.txt").read_text().split())


@BOTH
def test_packages_come_from_the_lock_file_by_hash_and_the_project_without_others(text: str) -> None:
    installs = re.findall(r"pip install (.*?)(?: \\)?$", text, re.MULTILINE)
    assert installs == [
        "--no-cache-dir --require-hashes -r /opt/requirements.txt",
        "--no-cache-dir --no-deps --no-build-isolation /opt/scalestudy",
    ]
    assert "LOCK=envs/requirements.txt" in text
    assert "--index" not in text and "://" not in text.replace("docker-daemon://", "")


def test_what_is_copied_into_an_image_is_there_and_enough_to_install_the_project() -> None:
    copied = [line.rpartition(" ")[0] for line in section("files")]
    of_docker = [word for line in re.findall(r"^COPY (.*) \S+$", DOCKER, re.MULTILINE) for word in line.split()]
    assert copied[0] == "{{ LOCK }}" and of_docker[0] == "${LOCK}"
    assert sorted(copied[1:]) == sorted(of_docker[1:])
    assert all((ROOT / name).exists() for name in copied[1:])
    ignored = (ROOT / "envs/Dockerfile.dockerignore").read_text().split()
    assert {f"!{name}" for name in copied[1:]} | {"!envs"} <= set(ignored)


def test_the_python_that_a_site_file_expects_is_first_in_the_images_path() -> None:
    python = Container(image="scalestudy.sif").python
    assert f"/opt/venv/bin/{python}" in " ".join(section("test"))
    assert "export PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin" in section("environment")
    assert re.search(r"^ENV PATH=/opt/venv/bin:", DOCKER, re.MULTILINE)
