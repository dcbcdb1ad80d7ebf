"""For tests that start programs of their own."""

import os


def one_device():
    """The environment of a user on one CPU; that of the tests has eight devices."""
    return {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
