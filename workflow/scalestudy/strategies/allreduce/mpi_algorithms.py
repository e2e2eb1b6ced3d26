"""How each family of MPI is asked for an algorithm of its all-reduce. Imports nothing heavy."""

from __future__ import annotations

OPEN_MPI, MPICH, INTEL_MPI = "Open MPI", "MPICH", "Intel MPI"
ALGORITHMS = {
    OPEN_MPI: {
        "linear": "1",
        "nonoverlapping": "2",
        "recursive_doubling": "3",
        "ring": "4",
        "segmented_ring": "5",
        "rabenseifner": "6",
    },
    MPICH: {"recursive_doubling": "recursive_doubling", "rabenseifner": "reduce_scatter_allgather"},
    INTEL_MPI: {"recursive_doubling": "1", "rabenseifner": "2", "ring": "8"},
}
"""By family and algorithm of the catalogue, the value of its variable: `coll_tuned_allreduce_algorithm` of Open MPI
(`ompi_info --param coll tuned --level 9`), MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM of MPICH (`mpichversion`, and its text),
I_MPI_ADJUST_ALLREDUCE of Intel MPI (Intel MPI Library Developer Reference, "I_MPI_ADJUST Family")."""
VARIABLES = {
    OPEN_MPI: ("OMPI_MCA_coll_tuned_allreduce_algorithm", {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}),
    MPICH: ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", {"MPIR_CVAR_DEVICE_COLLECTIVES": "none"}),
    INTEL_MPI: ("I_MPI_ADJUST_ALLREDUCE", {}),
}
"""The variable of each, and what has to be set so that it is heeded."""


def variables(algorithm: str) -> dict[str, str]:
    """The variables that have every family that has the algorithm use it; a variable of one family means nothing to others."""
    found: dict[str, str] = {}
    for family, (name, beside) in VARIABLES.items():
        if value := ALGORITHMS[family].get(algorithm):
            found |= {name: value, **beside}
    return found
