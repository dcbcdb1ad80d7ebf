"""How XLA compiles for the tests, and for the programs that they start."""

import os

# Half of the suite was compiling. Without LLVM's optimisation it compiles in half the time and computes the same within every
# tolerance here; `SLCA_COMPILE= pytest ...` runs the programs as users compile them.
COMPILE = os.environ.get("SLCA_COMPILE", "--xla_backend_optimization_level=0")


def one_device():
    """The environment of a user on one CPU; that of the tests has eight devices."""
    return {**os.environ, "XLA_FLAGS": COMPILE, "JAX_PLATFORMS": "cpu"}
