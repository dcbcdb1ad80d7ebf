"""What the server counts, in the text form of Prometheus. No label holds anything that a client chose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from slca.serve.engine import Engine

BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # seconds


class EngineStats:
    """The engine's own numbers, read when somebody asks for the page."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily("slca_engine_up", "1 = the engine takes requests", value=float(not self._engine.health()))
        for name, value in self._engine.stats().items():
            stem = f"slca_engine_{name.removesuffix('_total')}"
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(stem, f"{name} of the engine", value=value)


class Metrics:
    def __init__(self, engine: Engine):
        self.registry = CollectorRegistry()
        self.registry.register(EngineStats(engine))
        options: Any = {"registry": self.registry}
        self.requests = Counter(
            "slca_requests", "Requests by route and status; 499 = the client left", ["route", "code"], **options
        )
        self.seconds = Histogram("slca_request_seconds", "Request to last byte", ["route"], buckets=BUCKETS, **options)
        self.first = Histogram("slca_first_token_seconds", "Request to first token", ["route"], buckets=BUCKETS, **options)
        self.tokens = Counter("slca_tokens", "Tokens of requests that were answered", ["kind"], **options)
        self.damaged = Counter("slca_damaged_calls", "Calls in answers that could not be read", **options)

    def page(self) -> bytes:
        return generate_latest(self.registry)
