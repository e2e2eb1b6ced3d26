"""A bill of materials (CycloneDX 1.6, JSON) of what a lock file pins. Standard library only.

    python envs/sbom.py [--lock envs/requirements.txt ...] [--out FILE]

Everything that such a bill says is in the lock: names, versions, the SHA-256 of every distribution that may be installed,
where a package is installed, and why it is there. Licences are those that installed packages of these versions state; what
is not installed here has none. No tool is needed for that: cyclonedx-bom would bring a score of packages, pinned and to be
watched like the others, to write the same. The same lock and the same environment give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "envs/requirements.txt"
PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)\s*(?:;\s*(.*?))?\s*\\?$")
HASH = re.compile(r"^\s+--hash=sha256:([0-9a-f]{64})\s*\\?$")
VIA = re.compile(r"^\s+#(?: via)?\s+(\S.*)$")
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
"""That of URLs: RFC 9562, section 6.6."""
LONGEST_LICENCE = 80


@dataclass
class Package:
    """One entry of a lock."""

    name: str
    version: str
    marker: str
    hashes: list[str] = field(default_factory=list)
    needed_by: list[str] = field(default_factory=list)
    """Packages that need it."""
    asked_for: bool = False
    """A file of requirements names it."""

    @property
    def purl(self) -> str:
        """Its address: package-url's specification of `pypi`."""
        return f"pkg:pypi/{normal(self.name)}@{self.version}"


def normal(name: str) -> str:
    """A name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages(lock: Path) -> list[Package]:
    """What a lock pins. ValueError for a line that is none of a lock."""
    found: list[Package] = []
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), 1):
        if pinned := PINNED.match(line):
            found.append(Package(pinned[1], pinned[2], pinned[3] or ""))
        elif (hashed := HASH.match(line)) and found:
            found[-1].hashes.append(hashed[1])
        elif (via := VIA.match(line)) and found:
            found[-1].asked_for |= via[1].startswith("-r ")
            found[-1].needed_by += [] if via[1].startswith(("-r ", "-c ")) else [normal(via[1])]
        elif line.strip() and not line.lstrip().startswith("#"):
            raise ValueError(f"{lock}:{number}: this is not a line of a lock: {line}")
    for package in found:
        if not package.hashes:
            raise ValueError(f"{lock}: {package.name} {package.version} has no hash")
    return found


def bill(locks: Sequence[Path]) -> dict[str, Any]:
    """The bill of materials of these locks together."""
    found = {package.purl: package for lock in locks for package in packages(lock)}
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
    root = {"type": "application", "bom-ref": "scalestudy", "name": "scalestudy", "version": project_version(),
            "licenses": [{"license": {"id": "Apache-2.0"}}]}  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, digest)}",
        "version": 1,
        "metadata": {
            "component": root,
            "properties": [
                {"name": "scalestudy:lock", "value": " ".join(lock.name for lock in locks)},
                {"name": "scalestudy:lock:sha256", "value": digest},
                {"name": "scalestudy:hashes", "value": "of every distribution that the lock lets be installed"},
            ],
        },
        "components": [component(found[purl]) for purl in sorted(found)],
        "dependencies": list(dependencies(list(found.values()))),
    }


def component(package: Package) -> dict[str, Any]:
    """One package."""
    licence = licence_of(package)
    marker = [{"name": "scalestudy:marker", "value": package.marker}] if package.marker else []
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in sorted(package.hashes)],
        **({"licenses": [licence]} if licence else {}),
        **({"properties": marker} if marker else {}),
    }


def dependencies(found: Sequence[Package]) -> Iterator[dict[str, Any]]:
    """What needs what, as the lock's comments say; what nothing needs is needed by the project."""
    needs: dict[str, set[str]] = {"scalestudy": set(), **{package.purl: set() for package in found}}
    by_name: dict[str, list[str]] = {}
    for package in found:
        by_name.setdefault(normal(package.name), []).append(package.purl)
    for package in found:
        parents = [purl for name in package.needed_by for purl in by_name.get(name, [])]
        for parent in [*parents, *(["scalestudy"] if package.asked_for or not parents else [])]:
            needs[parent].add(package.purl)
    for ref in sorted(needs):
        yield {"ref": ref, "dependsOn": sorted(needs[ref])}


def licence_of(package: Package) -> dict[str, Any] | None:
    """What an installed package of this version says of its licence: PEP 639's expression, else its classifiers, else a
    name of one line. None where it is not installed, or says nothing."""
    try:
        installed = importlib.metadata.distribution(package.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if installed.version != package.version:
        return None
    said = installed.metadata
    if expression := said.get("License-Expression"):
        return {"expression": expression}
    classified = [
        line.rpartition(" :: ")[2] for line in said.get_all("Classifier", []) if line.startswith("License :: ")
    ]
    name = ", ".join(dict.fromkeys(classified)) or (said.get("License") or "").strip()
    return {"license": {"name": name}} if name and "\n" not in name and len(name) <= LONGEST_LICENCE else None


def project_version() -> str:
    """The version of this project."""
    text = (ROOT / "workflow/scalestudy/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    assert found is not None
    return found[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the bill, or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", type=Path, action="append", help="a lock; may be repeated")
    parser.add_argument("--out", type=Path, help="file to write; default: print")
    given = parser.parse_args(arguments)
    try:
        made = bill(given.lock or [LOCK])
    except (OSError, ValueError) as error:
        print(f"sbom: {error}", file=sys.stderr)
        return 2
    text = json.dumps(made, indent=1, ensure_ascii=False) + "\n"
    if given.out is None:
        sys.stdout.write(text)
        return 0
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(text, encoding="utf-8")
    known = sum("licenses" in each for each in made["components"])
    print(f"{given.out}: {len(made['components'])} packages, the licences of {known} known")
    return 0


if __name__ == "__main__":
    sys.exit(main())
