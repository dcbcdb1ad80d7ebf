"""Peak memory and time of reading a 7B-shaped checkpoint of few layers (random bfloat16 weights).

    python -m bench.load [LAYERS [DTYPE]]        # default 2 float32; needs 3 GB of disk and 10 GB of memory

Counted: anonymous resident memory of the process (RssAnon, sampled every 2 ms), less what it had before and less the parameters
themselves, which on a CPU lie in the same memory. Not counted: pages of the mapped files, which the kernel may drop at any time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import safetensors.numpy

from bench.arguments import positive
from slca.policy import weights
from slca.policy.config import ModelConfig
from slca.policy.layout import places

SHAPE = ModelConfig("qwen2", vocab=152_064, width=3584, layers=2, heads=28, kv_heads=4, head_dim=128, ff=18_944, tied=False)


def write(folder: Path, config: ModelConfig) -> int:
    """A sharded checkpoint, one file a tensor, no more than one in memory. Returns the size of the largest tensor in elements."""
    draw, largest, where = np.random.default_rng(0), 0, {}
    noise = draw.standard_normal(1 << 20, np.float32).astype(ml_dtypes.bfloat16)
    for number, place in enumerate(places(config)):
        count = int(np.prod(place.stored_shape))
        largest = max(largest, count)
        name = f"model-{number:05}.safetensors"
        tensor = np.resize(noise, count).reshape(place.stored_shape)
        safetensors.numpy.save_file({place.name: tensor}, folder / name)
        where[place.name] = name
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    return largest


def anonymous() -> int:
    """Bytes of anonymous resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no RssAnon in /proc/self/status (Linux only)")


class Peak:
    """Highest `anonymous()` while inside."""

    def __enter__(self) -> Peak:
        self.bytes, self._stop = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.bytes = max(self.bytes, anonymous())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="?", type=positive, default=SHAPE.layers)
    parser.add_argument("dtype", nargs="?", choices=("float32", "bfloat16"), default="float32")
    args = parser.parse_args(argv)
    config = ModelConfig(**{**vars(SHAPE), "layers": args.layers})
    dtype = args.dtype
    width = np.dtype(dtype if dtype == "float32" else ml_dtypes.bfloat16).itemsize
    jax.block_until_ready(jax.numpy.zeros(1))
    with tempfile.TemporaryDirectory() as folder:
        largest = write(Path(folder), config)
        before, start = anonymous(), time.monotonic()
        with Peak() as peak:
            _, params = weights.load(folder, dtype=dtype)
            jax.block_until_ready(params)
        seconds = time.monotonic() - start
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    above = peak.bytes - before - held
    print(
        f"jax {version('jax')}, safetensors {version('safetensors')}; {config.layers} layers, {held / width / 1e9:.2f} G parameters"
    )
    print(f"parameters ({dtype}) {held / 2**30:.2f} GiB, read in {seconds:.1f} s")
    print(f"largest tensor ({dtype}) {largest * width / 2**30:.2f} GiB")
    print(
        f"peak above the parameters   {above / 2**30:.2f} GiB = {above / (largest * width):.2f} x the largest tensor (goal: at most 2)"
    )
    return 0 if above <= 2 * largest * width else 1


if __name__ == "__main__":
    sys.exit(main())
