"""A cluster that has no files yet, and a study that runs there with what `scalestudy doctor --write` wrote, unedited."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from scalestudy.spec.machine import Machine
from scalestudy.spec.yamlfile import parse_yaml
from tests.cluster.box import Box
from tests.cluster.study import THROUGH
from tests.cluster.try_box import command_of, copy_of_project


class NewSite:
    """A clone of the project on a cluster of which it has no files, with a study of one run."""

    def __init__(self, box: Box, ranks: int = 2) -> None:
        self.box, self.clone = box, copy_of_project(box, "day_one")
        study = self.clone / "config/studies/through.yaml"
        study.write_text(THROUGH.replace("ranks: [1, 2, 4]", f"ranks: [{ranks}]").partition("tables:")[0])
        os.chown(study, self.clone.stat().st_uid, self.clone.stat().st_gid)

    def call(self, *words: str, timeout: float = 240) -> tuple[int, str]:
        """Exit status and output of a command in the clone."""
        done = subprocess.run(
            command_of(self.box, self.clone, *words), capture_output=True, text=True, timeout=timeout, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def machine(self) -> dict[str, Any]:
        """What the doctor wrote of the machine."""
        return dict(parse_yaml((self.clone / "config/machines/fresh.yaml").read_text(), "fresh.yaml").data)

    def results(self) -> list[Path]:
        return list(self.clone.glob("results/fresh/runs/*/result.json"))


def assert_runs_unedited(site: NewSite, kind: str) -> None:
    """The files that the doctor writes are enough for a study over two nodes."""
    _, said = site.call("scalestudy", "doctor", "--write", "fresh", "--nodes", "2")
    assert "wrote config/machines/fresh.yaml" in said, said
    assert (
        parse_yaml((site.clone / "profiles/fresh/site.yaml").read_text(), "site.yaml").data["scheduler"]["kind"] == kind
    )
    machine = Machine.model_validate(site.machine())
    assert (machine.nodes, machine.device) == (2, "cpu")
    # All nodes are one host here, and measured runs run alone.
    status, said = site.call("snakemake", "through", "--profile", "profiles/fresh", "--resources", "measure=1")
    assert status == 0, said
    (result,) = [json.loads(file.read_text()) for file in site.results()]
    assert (result["status"], len(result["launch"]["hosts"])) == ("valid", 2)
    assert list(site.clone.glob("results/fresh/paper/figures/through/*.svg")), said
