"""The options of a simulator, checked once. Names, defaults and units are those of section `sgls` in `configs/default.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from slca.sgls.faults import KINDS

MIN_CHARS = 64  # below this no cut can say what is gone
CHOICES = {
    "mode": ("safe", "paper"),
    "validate": ("required", "jsonschema"),
    "cache": ("none", "group", "global"),
    "state": ("none", "transcript", "kv"),
}
LEAST = {
    "regenerations": 0,
    "retries": 0,
    "max_chars": MIN_CHARS,
    "concurrency": 1,
    "max_tokens": 1,
    "temperature": 0,
    "slots": 1,
    "max_prompt_tokens": 1,
}


@dataclass(frozen=True)
class Options:
    """Raises ValueError, naming the field, on a value that makes no sense; TypeError on an unknown field."""

    mode: str = "safe"
    validate: str = "jsonschema"
    cache: str = "group"
    store: str = ""
    state: str = "none"
    response_check: bool = True
    regenerations: int = 2
    max_chars: int = 2048
    temperature: float = 0.6
    timeout: float = 540.0
    retries: int = 2
    url: str = ""
    model: str = ""
    key_env: str = "SLCA_SIMULATOR_KEY"
    concurrency: int = 32
    max_tokens: int = 4096
    slots: int = 16
    max_prompt_tokens: int = 4096
    faults: Mapping[str, Any] | None = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in fields(self):
            _check(one.name, getattr(self, one.name), str(one.type))
        self._check_faults()
        for name, values in CHOICES.items():
            if getattr(self, name) not in values:
                raise ValueError(f"sgls.{name}={getattr(self, name)!r}: one of {', '.join(values)}")
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"sgls.{name}={getattr(self, name)}: at least {least}")
        if self.timeout <= 0:
            raise ValueError(f"sgls.timeout={self.timeout}: seconds, above 0")
        if self.state == "kv" and not self.response_check and self.mode != "paper":
            raise ValueError("sgls.state=kv needs sgls.response_check: the state patch is part of the checked reply")

    def _check_faults(self) -> None:
        faults = self.faults or {}
        if unknown := [name for name in faults if name not in ("rate", "kinds")]:
            raise ValueError(f"sgls.faults: unknown fields {unknown}; known are rate and kinds")
        _check("faults.rate", faults.get("rate", 0.0), "float")
        if not 0 <= self.fault_rate <= 1:
            raise ValueError(f"sgls.faults.rate={self.fault_rate}: a share between 0 and 1")
        kinds = faults.get("kinds", KINDS)
        if not isinstance(kinds, list | tuple):
            raise ValueError(f"sgls.faults.kinds={kinds!r}: a list of {', '.join(KINDS)}")
        if self.fault_rate and not kinds:
            raise ValueError(
                f"sgls.faults.kinds=(): sgls.faults.rate={self.fault_rate} draws from them; name some of {', '.join(KINDS)}"
            )
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise ValueError(f"sgls.faults.kinds: unknown {unknown}; known are {list(KINDS)}")

    @property
    def paper(self) -> bool:
        return self.mode == "paper"

    @property
    def fault_rate(self) -> float:
        """Share of calls that meet a fault, 0..1."""
        return float((self.faults or {}).get("rate", 0.0))

    @property
    def fault_kinds(self) -> tuple[str, ...]:
        return tuple((self.faults or {}).get("kinds", KINDS))

    def effective(self) -> Options:
        """What is in force: mode `paper` switches every extra off, whatever the other fields say."""
        if not self.paper:
            return self
        return replace(self, validate="required", cache="none", store="", state="none", response_check=False, faults={})


def _check(name: str, value: Any, kind: str) -> None:
    """Raises ValueError unless the value of a field is what its annotation says; a number must be finite, True is none."""
    good = {
        "str": isinstance(value, str),
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    }.get(kind, value is None or hasattr(value, "keys"))
    if not good:
        wanted = {"str": "text", "bool": "True or False", "int": "a whole number", "float": "a finite number"}
        raise ValueError(f"sgls.{name}={value!r:.80}: {wanted.get(kind, 'fields rate and kinds')} is needed")
