"""Models, schemas on disk, the examples of the reference and the shipped files agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scalestudy.spec.config import Config, Site, checked
from scalestudy.spec.expand_study import expand
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.spec.schema import schemas
from scalestudy.spec.study_file import StudySpec
from scalestudy.spec.yamlfile import parse_yaml, read_yaml
from tests.conftest import ROOT

SCHEMAS = schemas()
STUDIES = sorted((ROOT / "config/studies").glob("*.yaml"))
REFERENCE = "".join((ROOT / f"docs/reference/{page}.md").read_text() for page in ("config", "study", "site", "models"))
EXAMPLES = re.findall(r"```yaml\n# (\S+)\n(.*?)```", REFERENCE, re.DOTALL)


def complaints(kind: str, data: Any) -> list[str]:
    errors = jsonschema.Draft202012Validator(SCHEMAS[kind]).iter_errors(data)
    return [f"{error.json_path}: {error.message[:200]}" for error in errors]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_a_shipped_study_agrees_with_model_and_schema(file: Path) -> None:
    document = read_yaml(file)
    checked(StudySpec, document)
    assert complaints("study", document.data) == []
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first == "# yaml-language-server: $schema=../../workflow/schemas/study.schema.json"


def test_a_run_agrees_with_its_schema() -> None:
    assert complaints("run", RunSpec().to_full_dict()) == []


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_of_the_reference_agrees_with_model_and_schema(name: str, text: str, project: Path) -> None:
    document = parse_yaml(text, name)
    if "studies" in name:
        (project / "config/extensions").mkdir()
        (project / "config/extensions/my_nets.py").write_text("class Wide: pass\n")
        spec = checked(StudySpec, document)
        for scale in ("mini", "paper"):
            assert expand(document, spec, "example", scale, Machine()).runs
        assert complaints("study", document.data) == []
    elif "machines" in name:
        checked(Machine, document)
        assert complaints("machine", document.data) == []
    else:
        checked(Site if "site" in name else Config, document)
        assert complaints("site" if "site" in name else "config", document.data) == []


STUDY: dict[str, Any] = {"question": "How?", "vary": {"ranks": [1, 2]}}


def test_editors_accept_what_a_layer_may_say_and_mark_what_is_wrong() -> None:
    base: dict[str, Any] = {
        "model": {"import": "nets:Net", "kwargs": {"depth": 3}},
        "strategy": {"compression": "fp16"},
        "data": {"scale": "64 MiB"},
        "measure": {"steps": None},
        "optimiser": {"steps": {"factor": 0.5}},
        "faults": [{"kind": "slow_rank", "rank": 0, "seconds": 1}],
    }
    assert complaints("study", {**STUDY, "base": base, "scales": {"mini": {"base": base}}}) == []
    for wrong in (
        {"base": {"modle": "mlp"}},
        {"base": {"strategy": {"name": "allreduce", "bucket": 3}}},
        {"scales": {"mini": {"base": {"batch": {"per_rnk": 3}}}}},
        {"figures": [{"kind": "eficiency"}]},
    ):
        assert len(complaints("study", {**STUDY, **wrong})) >= 1
