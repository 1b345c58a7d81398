"""Environment variables that make processes compute fast; a variable that the user sets is kept."""

from __future__ import annotations

COMPUTING = {
    # Threads that spin while waiting slow each other down a hundredfold on a busy machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    # But a thread that sleeps at once is woken for every operation of a small model. These few
    # microseconds halve the time of such operations, and cost a busy machine less than as much.
    "GOMP_SPINCOUNT": "1000",
    # cuBLAS adds in the same order at each run.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # torch asks the kernel for huge pages for large tensors: far fewer page faults.
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""OpenMP, cuBLAS and torch read these once, when they load and allocate first."""
