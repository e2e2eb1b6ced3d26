"""The bill of materials says what the locks pin, no more and no less."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ["requirements.txt", "requirements-cuda126.txt", "requirements-dev.txt"]


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    described = importlib.util.spec_from_file_location("sbom_script", ROOT / "envs/sbom.py")
    assert described and described.loader
    module = importlib.util.module_from_spec(described)
    sys.modules["sbom_script"] = module  # dataclasses look their module up
    described.loader.exec_module(module)
    return module


def made(sbom: ModuleType, tmp_path: Path, *locks: str) -> dict[str, Any]:
    words = [word for lock in locks for word in ("--lock", str(ROOT / "envs" / lock))]
    assert sbom.main([*words, "--out", str(tmp_path / "sbom.json")]) == 0
    return dict(json.loads((tmp_path / "sbom.json").read_text()))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_a_lock_is_listed_with_its_hashes_and_nothing_else(
    lock: str, sbom: ModuleType, tmp_path: Path
) -> None:
    text = (ROOT / "envs" / lock).read_text()
    pinned = re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;]+)", text, re.MULTILINE)
    bill = made(sbom, tmp_path, lock)
    assert sorted((each["name"], each["version"]) for each in bill["components"]) == sorted(pinned)
    hashes = [entry["content"] for each in bill["components"] for entry in each["hashes"]]
    assert sorted(hashes) == sorted(re.findall(r"--hash=sha256:(\w+)", text)) and len(hashes) > len(pinned)
    assert {entry["alg"] for each in bill["components"] for entry in each["hashes"]} == {"SHA-256"}
    of_numpy = re.search(r"^numpy==.*?\n((?:    --hash.*\n)+)", text, re.MULTILINE)
    if of_numpy:
        listed = next(each for each in bill["components"] if each["name"] == "numpy")
        assert sorted(entry["content"] for entry in listed["hashes"]) == sorted(
            re.findall(r"sha256:(\w+)", of_numpy[1])
        )


def test_it_has_the_form_of_cyclonedx_and_its_references_lead_somewhere(sbom: ModuleType, tmp_path: Path) -> None:
    bill = made(sbom, tmp_path, "requirements.txt")
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", bill["serialNumber"])
    refs = [each["bom-ref"] for each in bill["components"]]
    assert len(set(refs)) == len(refs)
    assert all(re.fullmatch(r"pkg:pypi/[a-z0-9-]+@[\w.+!-]+", each["purl"]) for each in bill["components"])
    assert all(each["type"] == "library" for each in bill["components"])
    assert {each["ref"] for each in bill["dependencies"]} == {"scalestudy", *refs}
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} == set(refs)


def test_what_needs_a_package_is_what_the_lock_says(sbom: ModuleType, tmp_path: Path) -> None:
    bill = made(sbom, tmp_path, "requirements.txt")
    needs = {
        each["ref"].partition("@")[0]: {ref.partition("@")[0] for ref in each["dependsOn"]}
        for each in bill["dependencies"]
    }
    assert "pkg:pypi/annotated-types" in needs["pkg:pypi/pydantic"]
    assert {"pkg:pypi/torch", "pkg:pypi/snakemake"} <= needs["scalestudy"]
    assert "pkg:pypi/annotated-types" not in needs["scalestudy"]


def test_licences_are_those_that_installed_packages_of_these_versions_state(sbom: ModuleType, tmp_path: Path) -> None:
    bill = made(sbom, tmp_path, "requirements.txt")
    listed = {each["name"]: each for each in bill["components"]}
    assert listed["click"]["version"] == importlib.metadata.version("click")
    assert listed["click"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    other = sbom.Package("click", "0.0.1", "")
    assert sbom.licence_of(other) is None and sbom.licence_of(sbom.Package("not-installed-here", "1", "")) is None


def test_the_same_locks_give_the_same_bytes_and_several_are_one_bill(sbom: ModuleType, tmp_path: Path) -> None:
    first, again = (made(sbom, tmp_path, "requirements.txt", "requirements-dev.txt") for _ in range(2))
    assert first == again
    alone = made(sbom, tmp_path, "requirements.txt")
    assert {each["bom-ref"] for each in alone["components"]} < {each["bom-ref"] for each in first["components"]}
    assert alone["serialNumber"] != first["serialNumber"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a==1\n", "a 1 has no hash"),
        ("a>=1\n", ":1: this is not a line of a lock: a>=1"),
        ("a==1 \\\n    --hash=md5:0\n", ":2: this is not a line of a lock"),
        ("--index-url http://x\n", ":1: this is not a line of a lock"),
    ],
)
def test_what_is_no_lock_is_one_message(
    text: str, message: str, sbom: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lock.txt").write_text(text)
    assert sbom.main(["--lock", str(tmp_path / "lock.txt")]) == 2
    assert message in capsys.readouterr().err
