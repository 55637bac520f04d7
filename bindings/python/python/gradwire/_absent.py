"""What scripts for Horovod ask about how it was built. It knows no framework."""

from __future__ import annotations

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


def mpi_threads_supported() -> bool:
    """False: there is no MPI."""
    return False


mpi_enabled = mpi_built = gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = mpi_threads_supported


def gloo_built() -> bool:
    """True, so that scripts for processors continue. Operations are Gradwire's, and not gloo's."""
    return True
