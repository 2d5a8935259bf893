"""Settings every test shares: one thread a worker, and property tests that repeat themselves under CI."""

import os

# Before torch and numpy are loaded: two workers with two threads each would fight over two cores.
# Processes that tests start inherit this.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# Factorising matrices takes as long as the machine is slow, so no example has a deadline.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")
