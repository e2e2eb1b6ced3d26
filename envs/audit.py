"""Known weaknesses of what a lock file pins, by pip-audit. Standard library only.

    python envs/audit.py [--lock envs/requirements.txt]

pip-audit is not part of the locks: it is installed into build/audit, apart from everything that runs. It asks the index of
packages for advisories; of packages that an index says nothing about, as mirrors do, it ends as if all was well. Here that
is a failure: what was not looked up is not known to be sound.

Exit status: 0 all packages were looked up and have no known weakness; 1 some have; 2 some, or all, were not looked up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "build/audit"
SOUND, WEAK, UNKNOWN = 0, 1, 2
ELSEWHERE = "run it where the index of packages offers advisories, as the public one does; or hand `make sbom` to another scanner"
MOST_NAMED = 5


def judged(report: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit status, and what to say, of pip-audit's report in JSON."""
    packages = report["dependencies"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    lines = [
        f"{package['name']} {package['version']}: {weakness['id']}"
        + (f", mended in {', '.join(weakness['fix_versions'])}" if weakness.get("fix_versions") else "")
        for package in packages
        for weakness in package.get("vulns", ())
    ]
    looked = len(packages) - len(skipped)
    found = f"{len(lines)} known weaknesses" if lines else "no known weakness"
    lines.append(f"{looked} of {len(packages)} packages were looked up: {found}")
    if skipped:
        more = f" and {len(skipped) - MOST_NAMED} more" if len(skipped) > MOST_NAMED else ""
        lines.append(f"the index has no advisories for {', '.join(skipped[:MOST_NAMED])}{more}: {ELSEWHERE}")
    return (WEAK if any(package.get("vulns") for package in packages) else UNKNOWN if skipped else SOUND), lines


def audited(lock: Path) -> tuple[int, list[str]]:
    """Run pip-audit on a lock, installed first where it is not."""
    program = TOOL / "bin/pip-audit"
    if not program.exists():
        subprocess.run([sys.executable, "-I", "-m", "venv", str(TOOL)], check=True)
        install = subprocess.run([str(TOOL / "bin/pip"), "install", "--quiet", "pip-audit"], check=False)
        if install.returncode:
            return UNKNOWN, [f"pip-audit cannot be installed into {TOOL}: {ELSEWHERE}"]
    command = [
        str(program),
        "-r",
        str(lock),
        "--require-hashes",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return judged(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        last = next(reversed(done.stderr.strip().splitlines()), "it said nothing")
        return UNKNOWN, [f"pip-audit gave no report ({last}): {ELSEWHERE}"]


def main() -> int:
    """Print what was found; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lock", type=Path, default=ROOT / "envs/requirements.txt")
    status, lines = audited(parser.parse_args().lock)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
