"""The families of MPI: how `mpirun` and `mpiexec` of each are told apart, and how each starts processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalestudy.site_fault import lacking
from scalestudy.spec.config import read_site

VERSION_S = 60


@dataclass(frozen=True)
class Family:
    """One family of launchers."""

    name: str
    says: tuple[str, ...]
    """What its `--version` prints, in small letters."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What its processes need in their environment."""


OPEN = Family("Open MPI", ("open mpi", "openrte", "prte"))
# The wheels of mpi4py hold a module for each of the two binary interfaces; Intel MPI has MPICH's.
HYDRA = Family("MPICH", ("hydra",), {"MPI4PY_MPIABI": "mpich"})
INTEL = Family("Intel MPI", ("intel(r) mpi",), {**HYDRA.variables, "I_MPI_PIN": "off"})
FAMILIES = (OPEN, INTEL, HYDRA)
"""Those whose options are known. Open MPI and MPICH are tested; Intel MPI, whose launcher is Hydra as MPICH's, is not."""
SAYS_TRANSPORTS = {"OMPI_MCA_btl_base_verbose": "30"}
"""By these variables Open MPI's ranks log how they send to each other; `results/transports.py` reads it."""
INTERFACE = "libmpi.so.12"
"""The library that all of MPICH's binary interface have; Debian's MPICH calls it by another name."""
DEBIAN_LIBRARY = "libmpich.so.12"


def family(command: str) -> Family | None:
    """The family that a launcher belongs to; None for one that is not known.

    Raises Skipped or SiteFault where there is no such command (`site_fault.lacking`).
    """
    if shutil.which(command) is None:
        raise lacking(f"there is no `{command}` here: install an MPI, or load its module", "mpirun", read_site().lacks)
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    version_text = (done.stdout + done.stderr).lower()
    return next((one for one in FAMILIES if any(words in version_text for words in one.says)), None)


def words(command: str, count: int, each: int, hosts: Sequence[str]) -> list[str]:
    """The command that starts `count` processes, `each` of them on one of the hosts after the other; none: on this one.

    A host may get more of them than it has slots, and none is bound: `binding.py` does that. An unknown launcher gets
    Hydra's options. Open MPI has to be told that root, as which containers often run, may start it.
    """
    if family(command) is not OPEN:
        return [command, "-n", str(count), "-ppn", str(each), "-hosts", ",".join(hosts) or "localhost"]
    options = ["-np", str(count), "--map-by", f"ppr:{each}:node:oversubscribe", "--bind-to", "none"]
    if hosts:
        options += ["--host", ",".join(f"{host}:{each}" for host in hosts)]
    return [command, *options, *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def variables_of_ranks(folder: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables by which mpi4py finds the library of mpirun's family; variables already set win.

    Where the library has Debian's name a link with the usual one is put into `folder`.
    """
    mpi = family("mpirun")
    variables = {name: environment.get(name, value) for name, value in ({} if mpi is None else mpi.variables).items()}
    if mpi in (INTEL, HYDRA) and (library := _of_debian(environment)):
        link = folder / "lib" / INTERFACE
        link.parent.mkdir()
        link.symlink_to(library)
        before = environment.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(link.parent), before]))
    return variables


def _of_debian(environment: Mapping[str, str]) -> str | None:
    """Debian's library of MPICH, where none has the usual name."""
    folders = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    program = shutil.which("ldconfig", path=os.pathsep.join([environment.get("PATH", ""), "/usr/sbin", "/sbin"]))
    if program is None or any((Path(folder) / INTERFACE).exists() for folder in folders if folder):
        return None
    done = subprocess.run([program, "-p"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    lines = [line.split() for line in done.stdout.splitlines() if " => " in line]
    libraries = {line[0]: line[-1] for line in reversed(lines)}
    return None if INTERFACE in libraries else libraries.get(DEBIAN_LIBRARY)
