"""What is written of memory and arithmetic, on a CPU and on devices that tell more."""

import sys
from types import SimpleNamespace

import jax
import pytest

from slca.aot.chips import CHIPS
from slca.report import system


def devices(monkeypatch, kind, *stats):
    """Fake devices of a kind, each with what its `memory_stats()` says (an exception is raised)."""

    def made(said):
        def memory_stats():
            if isinstance(said, Exception):
                raise said
            return said

        return SimpleNamespace(device_kind=kind, memory_stats=memory_stats)

    found = [made(said) for said in stats]
    monkeypatch.setattr(jax, "local_devices", lambda: found)
    monkeypatch.setattr(jax, "devices", lambda: found)
    monkeypatch.setattr(jax, "device_count", lambda: len(found))


def test_a_cpu_tells_of_its_process_alone():
    found = system.memory()
    assert found.keys() == {"sys/rss", "sys/rss_max"} and 2**20 < found["sys/rss"] <= found["sys/rss_max"] * 1.01
    assert "sys/mfu" not in system.speed({"time/update": 1.0, "train/tokens": 10.0}, 5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_freed_memory_goes_back():
    """Every second of 4000 pieces of 64 KiB is freed: 128 MB lie between pieces in use."""
    pieces = [bytes([1]) * 2**16 for _ in range(4000)]
    del pieces[::2]
    before = system.memory()["sys/rss"]
    if not system.trim():
        pytest.skip("a C library without malloc_trim")
    assert system.memory()["sys/rss"] < before - 90e6 and len(pieces) == 2000


def test_of_accelerators_the_fullest_counts(monkeypatch):
    devices(monkeypatch, "NVIDIA H200", {"peak_bytes_in_use": 3}, {"peak_bytes_in_use": 5}, None, {"bytes_in_use": 9})
    assert system.memory()["sys/hbm_max"] == 5.0
    devices(monkeypatch, "Metal", NotImplementedError("memory_stats"), RuntimeError("UNIMPLEMENTED"))
    assert "sys/hbm_max" not in system.memory()


def test_arithmetic_over_the_peak_by_hand(monkeypatch):
    """1e9 parameters, 1000 tokens in 2 s on four chips: 6 x 1e9 x 500 FLOP/s over 4 x 197e12."""
    devices(monkeypatch, "TPU v5 lite", *[None] * 4)
    values = {"time/rollout": 4.0, "engine/tokens_decoded": 100.0, "time/update": 2.0, "train/tokens": 1000.0}
    assert system.speed(values, 10**9) == pytest.approx(
        {"sys/tokens_sampled": 25.0, "sys/tokens_trained": 500.0, "sys/mfu": 3e12 / (4 * 197e12)}
    )


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("TPU v4", 275e12), ("TPU v5 lite", 197e12), ("TPU v5e", 197e12), ("TPU v5", 459e12), ("TPU v5p", 459e12), ("TPU v6 lite", 918e12),
        ("TPU v6e", 918e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12), ("NVIDIA B200", 2250e12),
    ],
)  # fmt: skip
def test_peaks_by_the_kind_that_a_device_names(monkeypatch, kind, peak):
    devices(monkeypatch, kind, None)
    assert system.speed({"time/update": 1.0, "train/tokens": peak / 6}, 1)["sys/mfu"] == pytest.approx(1.0)


def test_chips_of_the_ahead_of_time_compiler_have_the_same_peaks(monkeypatch):
    for kind, chip in CHIPS.items():
        devices(monkeypatch, kind, None)
        assert system.speed({"time/update": 1.0, "train/tokens": chip.flops / 6}, 1)["sys/mfu"] == pytest.approx(1.0), kind


def test_an_unknown_device_has_no_share(monkeypatch):
    devices(monkeypatch, "Quantum 9", None)
    assert "sys/mfu" not in system.speed({"time/update": 1.0, "train/tokens": 10.0}, 5)
    assert system.speed({"time/update": 0.0}, 5) == {}
