"""How XLA compiles for the tests, and for the programs that they start."""

import os
from importlib.metadata import version

# Half of the suite was compiling. Without LLVM's optimisation it compiles in half the time, without fusion emitters in two thirds
# of that, and computes the same within every tolerance here; `SLCA_COMPILE= pytest ...` runs the programs as users compile them.
# XLA ends the process at a flag that it does not know, as later ones do not know the second.
_FAST = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):
    _FAST += " --xla_cpu_use_fusion_emitters=false"
COMPILE = os.environ.get("SLCA_COMPILE", _FAST)


def one_device():
    """The environment of a user on one CPU; that of the tests has eight devices."""
    return {**os.environ, "XLA_FLAGS": COMPILE, "JAX_PLATFORMS": "cpu"}
