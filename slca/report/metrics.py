"""Metrics are (sum, weight) pairs until they are printed, and one JSON object a step once they are.

A mean of means is wrong as soon as parts differ in size (micro-batches, hosts, groups), so parts are merged as pairs and
divided once. Names say where a number comes from:

    rollout/reward/<channel>   rollout/success@0.9   rollout/summary   rollout/length/<writer>   rollout/tool_turns
    rollout/end/<reason>   rollout/error/<kind>   rollout/credit/zero_variance/<channel>   rollout/credit/sign_conflict/<method>
    train/loss   train/entropy   train/kl/old   train/kl/reference   train/clip_low   train/clip_high   train/grad_norm
    train/sampler_gap   train/sampler_gap_max   sft/loss   eval/<split>/t<temperature>/<metric>   time/<phase> (seconds)
    sys/rss (bytes)   sys/compiles

A name that ends in `_max` or `_min` is an extreme: parts merge by max or min instead of by sum.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slca.report.redact import redact_tree, secrets

Pair = tuple[float, float]
Metrics = dict[str, Pair]
FILE = "metrics.jsonl"
BOARDS = "tensorboard"  # a folder a phase in it


def pair(values: Any, weights: Any = None) -> Pair:
    """Sum and weight of `values` (any shape). Not-a-number means unscored and leaves both; `weights` (same shape) default to 1."""
    x = np.asarray(values, np.float64).ravel()
    w = np.ones_like(x) if weights is None else np.broadcast_to(np.asarray(weights, np.float64), np.shape(values)).ravel()
    known = ~np.isnan(x)
    return _sum((x[known] * w[known]).tolist()), _sum(w[known].tolist())


def merge(*parts: Mapping[str, Any]) -> Metrics:
    """Pairs of several parts as one. Sums are rounded once (`math.fsum`), so the order of the parts does not matter."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _join(name, [_as_pair(name, part[name]) for part in parts if name in part]) for name in names}


def _join(name: str, pairs: list[Pair]) -> Pair:
    extreme = max if name.endswith("_max") else min if name.endswith("_min") else None
    if extreme is None:
        return _sum([total for total, _ in pairs]), _sum([weight for _, weight in pairs])
    seen = [total / weight for total, weight in pairs if weight]
    return (extreme(seen), 1.0) if seen else (0.0, 0.0)


def _sum(values: list[float]) -> float:
    """`math.fsum`; opposite infinities, at which it raises, sum to not-a-number."""
    return math.fsum(values) if {math.inf, -math.inf} - set(values) else math.nan


def _as_pair(name: str, value: Any) -> Pair:
    try:
        total, weight = value
        return float(total), float(weight)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"metric {name!r} must be a (sum, weight) pair of numbers until it is printed; got {value!r}"
        ) from error


def finalize(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Means of the pairs. A name with weight 0 was not measured and is left out: no score is not a score of 0."""
    pairs = {name: _as_pair(name, value) for name, value in metrics.items()}
    return {name: total / weight for name, (total, weight) in pairs.items() if weight}


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Lines of a metrics file (or of the workdir that holds one), in order. A torn last line, cut by a kill, is left out.

    Raises ValueError with file and line number when any other line is not a JSON object.
    """
    path = Path(path)
    path = path / FILE if path.is_dir() else path
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}:{number}: not a JSON object ({error}); remove the line to read the rest") from error
    return rows


class Writer:
    """Appends one JSON object a step, or an evaluation, to `workdir/metrics.jsonl`, and to TensorBoard and Weights & Biases when asked.

    Phases count their steps apart: sft, rl, and eval, whose step is that of rl (0 = before it: the untrained policy and the one after
    the cold start). TensorBoard has a run a phase, since what it hides on resume it hides from a step on in the whole run.

    Resume (contract 14): save `offset()` in the checkpoint and pass it back; what a killed run wrote after that checkpoint
    is cut off, so no step is missing or doubled. `offset=None` appends after the last whole line; 0 starts over.

    `config` is stored by Weights & Biases and names the variables whose values are masked. One process writes: process 0. Use it as a
    context manager: Weights & Biases then learns whether the run failed.

    Raises ValueError when the file is shorter than `offset` or `offset` is not the end of a line, ImportError when a sink
    is asked for and its package is missing, OSError when Weights & Biases refuses the run.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        *,
        offset: int | None = None,
        tensorboard: bool = False,
        wandb: bool = False,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = Path(workdir) / FILE
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._hidden = secrets(config)
        self._file = open(self._path, "a+b")
        try:
            _cut(self._file, self._path, offset)
            rows = read(self._path)
            self._last = {row.get("phase", "rl"): int(row["step"]) for row in rows if "step" in row}
            self._kept, self._boards = dict(self._last), dict[str, Any]()
            self._board = _tensorboard() if tensorboard else None
            self._wandb = _wandb(self._path.parent, redact_tree(config or {}, self._hidden)) if wandb else None
        except BaseException:
            self._file.close()
            raise

    def write(self, step: int, values: Mapping[str, float], *, phase: str = "rl") -> dict[str, Any]:
        """Append {"step", "phase", **values} and flush; returns the object written.

        values: finished numbers (`finalize`). Not-a-number and infinities become null and are counted in `sys/nonfinite`.
        Raises ValueError when `step` does not follow the last one of its phase (sft | rl); evaluations may share one.
        """
        if step + (phase == "eval") <= self._last.get(phase, -1):
            raise ValueError(
                f"{self._path}: {phase} step {step} after {self._last[phase]}: resume with offset= of the checkpoint"
            )
        numbers = {name: _number(name, value) for name, value in values.items()}
        row: dict[str, Any] = {"step": int(step), "phase": phase, **numbers}
        bad = sum(value is None for value in numbers.values())
        if bad:
            row["sys/nonfinite"] = bad
        row = redact_tree(row, self._hidden)
        self._file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self._last[phase] = int(step)
        self._mirror(row)
        return row

    def _mirror(self, row: dict[str, Any]) -> None:
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}
        if self._board is not None:
            board = self._board_of(row["phase"])
            for name, value in numbers.items():
                board.add_scalar(name, value, row["step"])
            board.flush()
        if self._wandb is not None:
            self._wandb.log({**numbers, f"step/{row['phase']}": row["step"]})

    def _board_of(self, phase: str) -> Any:
        """TensorBoard's writer of a phase. What a killed run wrote there after the last step that was kept is hidden."""
        assert self._board is not None
        if phase not in self._boards:
            folder = self._path.parent / BOARDS / phase
            self._boards[phase] = self._board(str(folder), purge_step=self._kept.get(phase, -1) + 1)
        return self._boards[phase]

    def offset(self) -> int:
        """Bytes written so far, on disk: store it with the checkpoint of the step just written."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def close(self, failed: bool = False) -> None:
        self._file.close()
        for board in self._boards.values():
            board.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=int(failed))

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not KeyboardInterrupt:  # whoever is in such a hurry does not wait for an upload
            self.close(failed=kind is not None)


def _number(name: str, value: Any) -> float | int | None:
    if isinstance(value, tuple | list):
        raise TypeError(f"metric {name!r} is still a pair {value!r}: write finalize(metrics)")
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def _cut(file: Any, path: Path, offset: int | None) -> None:
    """Cut the file to `offset` bytes (None: to its last whole line)."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    content = file.read()
    keep = content.rfind(b"\n") + 1 if offset is None else offset
    if keep > size:
        raise ValueError(
            f"{path} has {size} bytes but the checkpoint was saved at {keep}: restore the file, or offset=None to append"
        )
    if keep and content[keep - 1 : keep] != b"\n":
        raise ValueError(f"{path}: byte {keep} is inside a line, so this offset belongs to another file; offset=None appends")
    file.truncate(keep)


def _tensorboard() -> Callable[..., Any]:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError("report.tensorboard=True needs the extra: pip install 'slca[tensorboard]'") from error
    return SummaryWriter  # type: ignore[no-any-return]


def _wandb(workdir: Path, config: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ImportError("report.wandb=True needs the extra: pip install 'slca[wandb]'") from error
    known = workdir / "wandb_id"  # the same run continues after a resume
    if not known.exists():
        known.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    name = known.read_text(encoding="utf-8").strip()
    try:
        run = wandb.init(dir=str(workdir), id=name, resume="allow", name=workdir.name, config=dict(config))
    except Exception as error:  # no key, no network: its errors are of no built-in kind
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise OSError(f"report.wandb=True: {said[:300]} (WANDB_MODE=offline keeps the run here until `wandb sync`)") from error
    for phase, glob in (("sft", "sft/*"), ("eval", "eval/*"), ("rl", "*")):
        run.define_metric(glob, step_metric=f"step/{phase}")
    return run
