"""The environment that processes on other nodes inherit: one list, for all launchers, which a site can extend.

Variables that name a host, a session or a job stay here: the launcher or the node sets its own. Grid Engine does not pass on
LD_LIBRARY_PATH, PBS and ssh pass on nothing, so everything that is needed stands in the script that nodes run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NAMES = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "LANG", "TZ",
    # proxies, by their names in both spellings; certificates of the tools that read addresses
    "http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy",
    "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY",
    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
PREFIXES = (
    "PYTHON", "CONDA_", "LC_", "SCALESTUDY_", "MULTINODE_", "TORCH", "PYTORCH_", "HOROVOD_",
    "OMP_", "MKL_", "KMP_", "OPENBLAS_", "MALLOC_", "CUDA_",
    # object stores
    "AWS_", "SSL_", "GOOGLE_", "AZURE_",
    # communication: NCCL, gloo, UCX, libfabric, Omni-Path, Open MPI and its launcher, Intel MPI, MPICH, mpi4py
    "NCCL_", "GLOO_", "UCX_", "FI_", "PSM2_", "PSM3_", "HFI_", "OMPI_MCA_", "PRTE_", "PMIX_MCA_", "I_MPI_", "MPICH_",
    "MPIR_CVAR_", "MPI4PY_",
)  # fmt: skip
NEVER = ("CUDA_VISIBLE_DEVICES",)
"""Each node has its own."""


def forwarded(environment: Mapping[str, str], more: Sequence[str] = ()) -> dict[str, str]:
    """The variables that go along; `more` are names of the site, `NAME*` all that begin so."""
    prefixes = PREFIXES + tuple(name.removesuffix("*") for name in more if name.endswith("*"))
    names = {*NAMES, *more}
    return {
        name: value
        for name, value in sorted(environment.items())
        if (name in names or name.startswith(prefixes)) and name not in NEVER and name.isidentifier()
    }
