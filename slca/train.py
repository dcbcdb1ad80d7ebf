"""The run: cold start, then rollout -> reward -> credit -> update, with evaluations, checkpoints and a report.

A run goes through two phases, `sft` and `rl`, and is `done`. Its position is a handful of numbers (`Position`), saved with
the parameters; everything else is a function of the config, so a run that was killed continues with the same numbers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from slca.assemble import apply_record, assemble, initial_params
from slca.checkpoint import Checkpoints
from slca.credit.algorithms import algorithm
from slca.evals.indomain import evaluate
from slca.learn.optim import optimizer, schedule
from slca.learn.sharding import row_shards, state_shardings
from slca.learn.update import init_state, make_sft_update
from slca.policy import transformer
from slca.reinforce import Outcome, make_step, named, put
from slca.report.console import print_table, step_line
from slca.report.episodes import episode_file, save_episodes
from slca.report.metrics import Writer, finalize
from slca.report.page import write_report
from slca.report.redact import secrets
from slca.sft import demonstrations
from slca.stop import Stop, Stopped
from slca.tasks.datasets import evaluation_tasks, stream
from slca.types import TrainState
from slca.validate import ConfigError, validate
from slca.workdir import check_workdir, write_json

log = logging.getLogger("slca")

SHOWN_ALGORITHMS = ("slca", "grpo", "toolpo", "rltr")  # credits stored beside the trained one, for the viewer


@dataclass
class Position:
    """Where a run stands. step counts within the phase; number counts steps and phase changes since the run began and names
    its checkpoints; stream is the state of the phase's task stream."""

    phase: str = "sft"  # sft | rl | done
    step: int = 0
    number: int = 0
    stream: dict[str, Any] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)


def run(config: Any, workdir: str | os.PathLike[str], *, resume: bool = True, allow_config_change: bool = False) -> int:
    """Train, or continue, the run of `workdir`. Returns the exit code: 0 = finished, or stopped by a signal and resumable.

    Raises ConfigError for a config that cannot run, or that differs from the one the workdir was started with.
    """
    _log_to_stdout()
    with contextlib.suppress(KeyError, ValueError):  # validate says what is wrong with the algorithm
        apply_record(config)
    validate(config)
    workdir = Path(workdir)
    stored = check_workdir(workdir, config, resume, allow_config_change)
    try:
        checkpoints = Checkpoints(workdir, keep=config.checkpoint.keep)
        trainer = Trainer(config, workdir, checkpoints, stored)
    except (ValueError, ImportError, OSError, RuntimeError, sqlite3.Error) as error:
        raise ConfigError(f"{type(error).__name__}: {error}") from error
    if sets := trainer.parts.algorithm.loss:
        log.info("%s sets %s", config.credit.algorithm, ", ".join(f"loss.{name}={value}" for name, value in sets.items()))
    write_json(workdir / "config.json", stored)
    with checkpoints:
        return trainer.run()


def _log_to_stdout() -> None:
    """Progress as plain lines on standard output; other libraries speak from WARNING on."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns at every save of files that one process does not have
    if not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.propagate = False
    log.setLevel(logging.INFO)


class Trainer:
    """One run in one process: the parts, the state, and the two loops over them."""

    def __init__(self, config: Any, workdir: Path, checkpoints: Checkpoints, stored: dict[str, Any]):
        self.config, self.workdir, self.checkpoints, self.stored = config, workdir, checkpoints, stored
        self.stop = Stop()
        self.parts = assemble(config)
        self.hidden = secrets(stored)
        self.position = Position()
        self.state: Any = None  # a TrainState once the run has begun
        self.saved = -1
        offset = self._restore()
        self._check_tasks()
        self.writer = Writer(
            workdir, offset=offset, tensorboard=config.report.tensorboard, wandb=config.report.wandb, config=stored
        )

    # ---- position, state, files

    def _restore(self) -> int:
        """Take up the newest checkpoint, if any; returns the offset into metrics.jsonl to continue at."""
        found = self.checkpoints.restore(lambda saved: self._like(saved["data"]["phase"]))
        if found is None:
            old = self.workdir / "metrics.jsonl"
            if old.is_file() and old.stat().st_size:
                os.replace(old, self.workdir / "metrics-without-checkpoint.jsonl")
                log.warning("no checkpoint to continue: starting over, the old metrics are in metrics-without-checkpoint.jsonl")
            return 0
        self.position, self.state = Position(**found.data), found.state
        self.saved = self.position.number = found.step
        log.info("continuing %s at %s step %d", self.workdir, self.position.phase, self.position.step)
        return found.metrics_offset

    def _like(self, phase: str) -> TrainState:
        """Shapes and placement of the phase's TrainState."""
        tx = self._optimizer(phase)
        shapes = jax.eval_shape(lambda: transformer.init(self.parts.model, jax.random.key(0)))
        state = jax.eval_shape(lambda p: init_state(p, tx, jax.random.key(0)), shapes)
        if self.parts.mesh is None:
            place: Any = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state)
        places = state_shardings(state, transformer.logical_axes(self.parts.model), self.parts.mesh)
        return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, places)

    def _optimizer(self, phase: str) -> Any:
        c, axes = self.config, transformer.logical_axes(self.parts.model)
        if phase == "sft":
            with (section := c.optim.copy_and_resolve_references()).unlocked():
                section.update(name=c.sft.optimizer, weight_decay=c.sft.weight_decay)
            return optimizer(section, schedule(c.sft.schedule, c.sft.lr, max(1, c.sft.steps), c.sft.warmup), axes)
        steps = max(1, c.train.steps * c.train.mu * c.train.mini_batches)
        return optimizer(c.optim, schedule(c.optim.schedule, c.optim.lr, steps, c.optim.warmup), axes)

    def _save(self) -> None:
        """Checkpoint the run where it stands, once."""
        if self.position.number == self.saved:
            return
        self.checkpoints.wait()
        self.checkpoints.save(
            self.position.number, self.state, asdict(self.position), self.stored, metrics_offset=self.writer.offset(),
            score=self._score(),
        )  # fmt: skip
        self.saved = self.position.number

    def _enter(self, phase: str) -> None:
        """Change the phase and save."""
        step = self.position.step if phase == "done" else 0
        tasks = self.position.stream if phase == "done" else {}
        self.position = Position(phase, step, self.position.number + 1, tasks, self.position.results)
        self._save()

    def _score(self) -> float | None:
        """What `best` means: sampled success on the first split of the newest evaluation."""
        rows = [row for row in self.position.results if row["split"] == self.config.eval.splits[0]]
        return rows[-1]["metrics"].get("success@0.9") if rows else None

    # ---- the run

    def run(self) -> int:
        if self.position.phase == "done" and self.position.step < self.config.train.steps:
            self._extend()
        if self.position.phase == "done":
            log.info("%s is finished", self.workdir)
            return self._finish()
        self._announce()
        try:
            if self.state is None:
                self._start()
            if self.position.phase == "sft":
                self._sft()
                self._stage("after SFT")
                self._begin_rl()
            self._rl()
            self._stage("after RL")
        except Stopped:
            return self._leave()
        self._enter("done")
        self.checkpoints.wait()
        return self._finish()

    def _extend(self) -> None:
        """A finished run whose config now asks for more RL steps goes on from its end."""
        for row in self.position.results:
            if row["name"] == "after RL":
                row["name"] = f"RL step {self.position.step}"
        self.position.phase = "rl"

    def _check_tasks(self) -> None:
        """Open every task source the run will read, so that a wrong one is an error now and not after the cold start."""
        stream(self.config.tasks, "train", self.config.run.seed)
        for split in self.config.eval.splits:
            evaluation_tasks(self.config.tasks, split, 1, self.config.eval.seed)

    def _announce(self) -> None:
        sampler, model = self.parts.sampler, self.parts.model
        count = sum(
            np.prod(x.shape) for x in jax.tree.leaves(jax.eval_shape(lambda: transformer.init(model, jax.random.key(0))))
        )
        log.info(
            "%s · %s %.2f M parameters · %d device(s) %s · cache of %d slots %.0f MiB · sampler programs: %s",
            self.parts.algorithm.name, model.family, count / 1e6, jax.device_count(), jax.devices()[0].platform,
            sampler.slots, sampler.nbytes() / 2**20, ", ".join(f"{name}{list(shape)}" for name, shape in sampler.programs),
        )  # fmt: skip

    def _start(self) -> None:
        params = initial_params(self.config, self.parts)
        self._stage("untrained", params)
        phase = "sft" if self.config.sft.steps else "rl"
        self.position.phase = phase
        self.state = init_state(params, self._optimizer(phase), jax.random.key(self.config.run.seed))
        if phase == "rl":
            self._begin_rl()

    def _begin_rl(self) -> None:
        """Turn the state into RL's: same parameters, new optimizer, a new task stream; keep the reference policy."""
        self.state = init_state(self.state.params, self._optimizer("rl"), jax.random.key(self.config.run.seed))
        if self._reference_needed():
            with Checkpoints(self.workdir / "reference", keep=1) as reference:
                reference.save(0, self.state, {}, self.stored)
        self._enter("rl")

    def _reference_needed(self) -> bool:
        return self.config.loss.kl_coef > 0 or self.config.train.keep_reference

    def _leave(self) -> int:
        if self.state is not None:
            self._save()
            self.checkpoints.wait()
        log.info("stopped %s at %s step %d; the same command continues", self.workdir, self.position.phase, self.position.step)
        return 0

    def _finish(self) -> int:
        write_json(self.workdir / "results.json", {"rows": self.position.results})
        report = write_report(self.workdir)
        print_table(self.position.results)
        print(f"report: {report}")
        return 0

    # ---- cold start

    def _sft(self) -> None:
        c = self.config
        update = make_sft_update(
            self.parts.hidden,
            self.parts.unembed,
            self._optimizer("sft"),
            c,
            mesh=self.parts.mesh,
            placement=self._placement("sft"),
        )
        tasks = stream(c.tasks, "train", c.run.seed)
        if self.position.stream:
            tasks.restore(self.position.stream)
        while self.position.step < c.sft.steps:
            self._heed_stop()
            began = time.monotonic()
            batch, counts = demonstrations(tasks, self.parts.template, c, self.position.step, row_shards(self.parts.mesh))
            seconds, began = time.monotonic() - began, time.monotonic()
            self.state, metrics = update(self.state, put(batch, self.parts.mesh))
            self._advance(tasks)
            values = finalize(jax.device_get(metrics))
            values |= counts | {"time/data": seconds, "time/update": time.monotonic() - began}
            self.writer.write(self.position.step, named("sft", values), phase="sft")
            if self.position.step % 20 == 0 or self.position.step == 1:
                log.info("sft %d/%d loss %.3f", self.position.step, c.sft.steps, values.get("loss", float("nan")))
            if self.position.step == c.sft.steps or (
                c.checkpoint.sft_every and self.position.step % c.checkpoint.sft_every == 0
            ):
                self._save()

    # ---- reinforcement

    def _rl(self) -> None:
        c = self.config
        step = make_step(c, self.parts, self._optimizer("rl"), self._placement("rl"), self._reference())
        tasks = stream(c.tasks, "train", c.run.seed + 1)
        if self.position.stream:
            tasks.restore(self.position.stream)
        while self.position.step < c.train.steps:
            self._heed_stop()
            number = self.position.step
            if number and c.eval.every and number % c.eval.every == 0:
                self._stage(f"RL step {number}")
            with (
                jax.profiler.trace(str(self.workdir / "profile")) if number == c.run.profile_step else contextlib.nullcontext()
            ):
                self.state, outcome = step(self.state, tasks.next(c.rollout.prompts), number)
            done, last = number + 1, number + 1 == c.train.steps
            self._advance(tasks)
            if c.report.episodes_every and (last or number % c.report.episodes_every == 0):
                self._store(outcome, number)
            system = {"sys/compiles": float(self.parts.sampler.compiles()), "sys/rss": _rss()}
            self.writer.write(done, outcome.values | system, phase="rl")
            log.info(step_line(done, c.train.steps, outcome.values))
            if last or (c.checkpoint.every and done % c.checkpoint.every == 0):
                self._save()

    def _reference(self) -> Any:
        """The frozen policy of the KL term: the parameters RL started from."""
        if not self._reference_needed():
            return None
        with Checkpoints(self.workdir / "reference", keep=1) as reference:
            found = reference.restore(self._like("rl"))
        if found is None:
            raise ConfigError(f"{self.workdir}/reference is missing: the KL term needs the policy that RL started from")
        return found.state.params

    def _store(self, outcome: Outcome, step: int) -> None:
        """Episodes with the credit each method would have given them: the leak made visible in the viewer."""
        credits = {self.parts.algorithm.name: outcome.credit}
        for name in SHOWN_ALGORITHMS:
            credits.setdefault(name, algorithm(name, self.config.credit).credit(outcome.rollouts))
        save_episodes(
            episode_file(self.workdir, step), outcome.episodes, outcome.rollouts, credits, self.parts.tokenizer.decode,
            hidden=self.hidden, step=step,
        )  # fmt: skip

    # ---- shared

    def _advance(self, tasks: Any) -> None:
        self.position.step += 1
        self.position.number += 1
        self.position.stream = tasks.state()

    def _heed_stop(self, *_: Any) -> None:
        if self.stop.asked:
            raise Stopped

    def _stage(self, name: str, params: Any = None) -> None:
        """Evaluate once under `name`: a run that continues does not do it again."""
        if not any(row["name"] == name for row in self.position.results):
            self.position.results += self._evaluate(name, self.state.params if params is None else params)

    def _placement(self, phase: str) -> TrainState | None:
        return None if self.parts.mesh is None else jax.tree.map(lambda x: x.sharding, self._like(phase))

    def _evaluate(self, name: str, params: Any) -> list[dict[str, Any]]:
        """A row of results a split and temperature; the tasks and the draws are the same every time."""
        c, rows = self.config, []
        for split in c.eval.splits:
            tasks = evaluation_tasks(c.tasks, split, c.eval.tasks, c.eval.seed)
            for temperature in c.eval.temperatures:
                began = time.monotonic()
                found = evaluate(
                    params, tasks, self.parts.sampler, self.parts.template, self.parts.simulator, c,
                    temperature=temperature, seed=c.eval.seed, progress=self._heed_stop,
                )  # fmt: skip
                self.parts.simulator.metrics(reset=True)  # its counters speak of training steps
                metrics = {key: mean for key, (mean, n) in found.items() if n}
                rows.append({"name": name, "split": split, "temperature": temperature, "n": len(tasks), "metrics": metrics})
                log.info(
                    "%s · %s · T=%g: success@0.9 %.3f, summary %.3f (%d tasks, %.1f s)", name, split, temperature,
                    metrics.get("success@0.9", float("nan")), metrics.get("summary", float("nan")), len(tasks), time.monotonic() - began,
                )  # fmt: skip
        return rows


def _rss() -> float:
    """Peak resident memory of this process, bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
