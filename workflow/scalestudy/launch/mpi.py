"""The families of MPI: how `mpirun` and `mpiexec` of each are told apart, and how each starts processes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scalestudy.site_fault import lacking
from scalestudy.spec.config import read_site

VERSION_S = 60


@dataclass(frozen=True)
class Family:
    """One family: `{count}` processes in all, `{each}` on every host."""

    name: str
    says: tuple[str, ...]
    """What its `--version` prints, in small letters."""
    options: tuple[str, ...]
    """Processes are dealt host by host, more than a host has slots too, and bound to nothing: `binding.py` does that."""
    hosts: str
    """The option that names hosts."""
    host: str = "{host}"
    """How it names one of them."""
    here: tuple[str, ...] = ()
    """Options by which all processes are on this host, whatever nodes its job has."""
    as_root: tuple[str, ...] = ()
    """What root, which containers often run as, has to say."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What its processes need in their environment."""


OPEN = Family(
    "Open MPI", ("open mpi", "openrte", "prte"),
    ("-np", "{count}", "--map-by", "ppr:{each}:node:oversubscribe", "--bind-to", "none"),
    "--host", "{host}:{each}", as_root=("--allow-run-as-root",),
)  # fmt: skip
HYDRA = Family(
    "MPICH", ("hydra",), ("-n", "{count}", "-ppn", "{each}"), "-hosts", here=("-hosts", "localhost"),
    # The wheels of mpi4py hold a module for each of the two binary interfaces; Intel MPI has MPICH's.
    variables={"MPI4PY_MPIABI": "mpich"},
)  # fmt: skip
INTEL = replace(HYDRA, name="Intel MPI", says=("intel(r) mpi",), variables={**HYDRA.variables, "I_MPI_PIN": "off"})
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

    An unknown launcher gets Hydra's options.
    """
    mpi = family(command) or HYDRA
    options = [option.format(count=count, each=each) for option in mpi.options]
    if not hosts:
        options += mpi.here
    else:
        options += [mpi.hosts, ",".join(mpi.host.format(host=host, each=each) for host in hosts)]
    return [command, *options, *(mpi.as_root if os.geteuid() == 0 else ())]


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
