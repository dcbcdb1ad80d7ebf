"""Eight CPU devices, no silent rank promotion, exact matmuls, one compile cache for the whole run."""

import os
import tempfile

from tests.programs import COMPILE

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {COMPILE} --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"slca-test-cache-{os.getuid()}"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")


LONG = ("tests/test_train.py", "tests/test_processes.py", "tests/evals/test_bfcl.py", "tests/aot/test_plan.py")


def pytest_collection_modifyitems(items):
    """The files whose tests take longest come first, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture
def config():
    """The default config, unlocked: a test changes what it needs."""
    from configs.default import get_config

    return get_config()
