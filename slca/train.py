"""The run: cold start, then rollout -> reward -> credit -> update, with evaluations, checkpoints and a report.

A run goes through two phases, `sft` and `rl`, and is `done`. Its position is a handful of numbers (`Position`), saved with
the parameters; everything else is a function of the config, so a run that was killed continues with the same numbers.
With several processes every one runs all of this; process 0 alone writes files, checkpoints (Orbax) apart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from slca import processes
from slca.assemble import assemble, initial_params, own_parts
from slca.checkpoint import Checkpoints
from slca.credit.algorithms import algorithm
from slca.credit.record import Algorithm
from slca.learn.sharding import put_whole, row_shards, settled
from slca.learn.update import init_state, make_sft_update
from slca.phases import Position, phase_like, phase_optimizer, phase_placement, reference_needed
from slca.policy import lora
from slca.pulse import Pulse
from slca.reinforce import Outcome, is_stored, make_step, named, update_shapes
from slca.report import system
from slca.report.console import log_through, print_table
from slca.report.episodes import episode_file, save_episodes
from slca.report.metrics import Writer, finalize
from slca.report.page import write_report
from slca.report.progress import Progress
from slca.report.redact import secrets
from slca.restore import check_base
from slca.rollout.warm import compile_all
from slca.sft import demonstrations
from slca.stages import run_stage
from slca.start import agreed, announce, count_parameters, prepare, told
from slca.stop import Stop, Stopped
from slca.tasks.datasets import stream
from slca.types import TrainState
from slca.validate import ConfigError
from slca.workdir import Silent, check_resume, check_workdir, lock, write_json

log = logging.getLogger("slca")

SHOWN_ALGORITHMS = ("slca", "grpo", "toolpo", "rltr")  # credits stored beside the trained one, for the viewer
SFT_LINES = 20  # cold-start steps a line of output


def run(config: Any, workdir: str | os.PathLike[str], *, resume: bool | None = None, allow_config_change: bool = False) -> int:
    """Train, or continue, the run of `workdir`. Returns the exit code: 0 = finished, or stopped by a signal and resumable.

    resume: True = the workdir must hold a run, False = it must not, None = continue what it holds, else begin.
    Raises ConfigError for a config that cannot run, that differs from the one the workdir was started with, or a workdir in use.
    """
    workdir = Path(workdir)
    with contextlib.ExitStack() as closing:
        progress = closing.enter_context(Progress(sys.stdout, quiet=processes.index() > 0))
        log_through(progress)
        with agreed():
            record = prepare(config)
            if resume:
                check_resume(workdir)
            if processes.index() == 0:
                closing.enter_context(lock(workdir))
        with agreed():
            stored = check_workdir(workdir, config, resume, allow_config_change)
        pulse = Pulse(progress, workdir, config.run.watchdog_seconds, index=processes.index(), count=processes.count())
        pulse.watch(system.compiles)
        closing.enter_context(pulse)
        with agreed(), pulse.phase("start"):
            try:
                checkpoints = Checkpoints(workdir, keep=config.checkpoint.keep)
                trainer = Trainer(config, workdir, checkpoints, stored, record, pulse)
            except (ImportError, OSError, sqlite3.Error) as error:
                raise ConfigError(f"{type(error).__name__}: {error}") from error
            except (ValueError, RuntimeError) as error:  # their messages name what is at fault
                raise ConfigError(str(error)) from error
        closing.enter_context(checkpoints)
        if processes.index() == 0:
            write_json(workdir / "config.json", stored)
        return told(pulse, trainer.run)


class Trainer:
    """One run in one process: the parts, the state, and the two loops over them."""

    def __init__(
        self, config: Any, workdir: Path, checkpoints: Checkpoints, stored: dict[str, Any], record: Algorithm | None, pulse: Pulse
    ):  # fmt: skip
        self.config, self.workdir, self.checkpoints, self.stored, self.pulse = config, workdir, checkpoints, stored, pulse
        self.stop = Stop()
        self.parts = assemble(config, record)
        self.own, self.fetch = own_parts(self.parts)
        self.hidden = secrets(stored)
        self.position = Position()
        self.state: Any = None  # a TrainState once the run has begun
        self.saved = -1
        self.parameters = count_parameters(self.parts)
        offset = self._restore()
        r = config.report
        self.writer: Any = (
            Writer(workdir, offset=offset, tensorboard=r.tensorboard, wandb=r.wandb, config=stored)
            if processes.index() == 0
            else Silent()
        )

    # ---- position, state, files

    def _restore(self) -> int:
        """Take up the newest checkpoint, if any; returns the offset into metrics.jsonl to continue at."""
        found = self.checkpoints.restore(lambda saved: phase_like(self.config, self.parts, saved["data"]["phase"]))
        if found is None:
            old = self.workdir / "metrics.jsonl"
            if processes.index() == 0 and old.is_file() and old.stat().st_size:
                os.replace(old, self.workdir / "metrics-without-checkpoint.jsonl")
                log.warning("no checkpoint to continue: starting over, the old metrics are in metrics-without-checkpoint.jsonl")
            else:
                log.info("a new run: nothing to continue in %s", self.workdir.absolute())
            return 0
        self.position, self.state = Position(**found.data), found.state
        if self.parts.model.lora:  # the checkpoint holds the adapters alone
            whole = initial_params(self.config, self.parts)
            check_base(self.workdir, found.extra, lora.frozen(whole))
            self.state = self.state._replace(params=lora.joined(whole, self.state.params))
        self.saved = self.position.number = found.step
        log.info("continuing %s at %s step %d", self.workdir, self.position.phase, self.position.step)
        return found.metrics_offset

    def _save(self) -> None:
        """Checkpoint the run where it stands, once."""
        if self.position.number == self.saved:
            return
        with self.pulse.phase("save"):
            self.checkpoints.wait()
            base = {"base": int(lora.checksum(lora.frozen(self.state.params)))} if self.parts.model.lora else None
            self.checkpoints.save(
                self.position.number, self.state, asdict(self.position), self.stored, metrics_offset=self.writer.offset(),
                score=self._score(), extra=base,
            )  # fmt: skip
        self.saved = self.position.number
        system.trim()

    def _enter(self, phase: str) -> None:
        """Change the phase and save."""
        step = self.position.step if phase == "done" else 0
        tasks = self.position.stream if phase == "done" else {}
        self.position = Position(phase, step, self.position.number + 1, tasks, self.position.results)
        self._save()

    def _score(self) -> float | None:
        """What `best` means: sampled success on the first split of the newest evaluation."""
        rows = [row for row in self.position.results if row["split"] in self.config.eval.splits[:1]]
        return rows[-1]["metrics"].get("success@0.9") if rows else None

    # ---- the run

    def run(self) -> int:
        if self.position.phase == "done" and self.position.step < self.config.train.steps:
            self._extend()
        if self.position.phase == "done":
            log.info("%s is finished", self.workdir)
            return self._finish()
        announce(self.config, self.parts, self.parameters)
        try:
            if self.state is not None:
                self._compile(self.state.params)
            else:
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
        self._wait()
        return self._finish()

    def _extend(self) -> None:
        """A finished run whose config now asks for more RL steps goes on from its end."""
        for row in self.position.results:
            if row["name"] == "after RL":
                row["name"] = f"RL step {self.position.step}"
        self.position.phase = "rl"

    def _start(self) -> None:
        with self.pulse.phase("load"):
            params = initial_params(self.config, self.parts)
        self._compile(params)
        self._stage("untrained", params)
        phase = "sft" if self.config.sft.steps else "rl"
        self.position.phase = phase
        self.state = self._fresh(params, phase)
        if phase == "rl":
            self._begin_rl()

    def _compile(self, params: Any) -> None:
        """Every program of the sampler, before the first rollout or evaluation waits for one; those of the update follow in RL's first step."""
        with self.pulse.phase("compile"):
            sampler = self.own.sampler
            compile_all(sampler, sampler.prepare(self.fetch(params)), self.own.template.stop_ids, appends=True)
        system.trim()
        self._heed_all()

    def _fresh(self, params: Any, phase: str) -> TrainState:
        """The TrainState that a phase starts with; it holds `params` themselves."""
        seed, tx = self.config.run.seed, phase_optimizer(self.config, self.parts.model, phase)
        places = phase_placement(self.config, self.parts, phase)
        if places is None:
            return settled(init_state(params, tx, jax.random.key(seed)))
        opt_state = jax.jit(tx.init, out_shardings=places.opt_state)(lora.trainable(params))
        rest = jax.jit(lambda: (jnp.zeros((), jnp.int32), jax.random.key(seed)), out_shardings=(places.step, places.key))
        return TrainState(params, opt_state, *rest())

    def _begin_rl(self) -> None:
        """Turn the state into RL's: same parameters, new optimizer, a new task stream; keep the reference policy."""
        self.state = self._fresh(self.state.params, "rl")
        if reference_needed(self.config):
            with Checkpoints(self.workdir / "reference", keep=1) as reference:
                reference.save(0, self.state, {}, self.stored)
        self._enter("rl")

    def _leave(self) -> int:
        if self.state is not None:
            self._save()
            self._wait()
        log.info("stopped %s at %s step %d; the same command continues", self.workdir, self.position.phase, self.position.step)
        return 0

    def _wait(self) -> None:
        with self.pulse.phase("save"):
            self.checkpoints.wait()

    def _finish(self) -> int:
        if processes.index():
            return 0
        write_json(self.workdir / "results.json", {"rows": self.position.results})
        report = write_report(self.workdir)
        self.pulse.progress.close()  # its bars would stand over the table
        print_table(self.position.results)
        print(f"report: {report}")
        return 0

    # ---- cold start

    def _sft(self) -> None:
        c, parts, progress = self.config, self.parts, self.pulse.progress
        tx, placement = phase_optimizer(c, parts.model, "sft"), phase_placement(c, parts, "sft")
        update = make_sft_update(parts.hidden, parts.unembed, tx, c, mesh=parts.mesh, placement=placement)
        tasks = stream(c.tasks, "train", c.run.seed)
        if self.position.stream:
            tasks.restore(self.position.stream)
        progress.stage("sft", c.sft.steps, self.position.step)
        while self.position.step < c.sft.steps:
            self._heed_all()
            began = time.monotonic()
            batch, counts = demonstrations(tasks, parts.template, c, self.position.step, row_shards(parts.mesh))
            seconds, began = time.monotonic() - began, time.monotonic()
            with self.pulse.phase("update"):
                self.state, metrics = update(self.state, put_whole(batch, parts.mesh))
                values = finalize(jax.device_get(metrics))
            self._advance(tasks)
            done, last = self.position.step, self.position.step == c.sft.steps
            values |= counts | {"time/data": seconds, "time/update": time.monotonic() - began}
            values = named("sft", values) | system.memory() | {"sys/compiles_all": system.compiles()}
            self.writer.write(done, values, phase="sft")
            progress.step(done - 1, values, say=done % SFT_LINES == 0 or done == 1 or last)
            if last or (c.checkpoint.sft_every and done % c.checkpoint.sft_every == 0):
                self._save()

    # ---- reinforcement

    def _rl(self) -> None:
        c, progress = self.config, self.pulse.progress
        tx, placement = phase_optimizer(c, self.parts.model, "rl"), phase_placement(c, self.parts, "rl")
        tasks = stream(c.tasks, "train", c.run.seed + 1)
        spare = tasks.shuffled(c.run.seed + 2).at if c.rollout.resample_fresh else None
        step = make_step(c, self.parts, tx, placement, self._reference(), self.pulse.phase, self.pulse.watch, spare)
        if self.position.stream:
            tasks.restore(self.position.stream)
        shapes = ", ".join(f"[{rows}, {length}]" for length, rows in update_shapes(c, self.parts).items())
        log.info("update programs (rows, tokens): %s", shapes)
        progress.stage("rl", c.train.steps, self.position.step)
        while self.position.step < c.train.steps:
            self._heed_all()
            number = self.position.step
            if number and c.eval.every and number % c.eval.every == 0:
                self._stage(f"RL step {number}")
            traced = number == c.run.profile_step and processes.index() == 0
            began = time.monotonic()
            with jax.profiler.trace(str(self.workdir / "profile")) if traced else contextlib.nullcontext():
                self.state, outcome = step(self.state, tasks.next(c.rollout.prompts), number)
            done, last = number + 1, number + 1 == c.train.steps
            self._advance(tasks)
            if is_stored(c, number):
                self._store(outcome, number)
            values = outcome.values | {"time/step": time.monotonic() - began}
            values |= system.memory() | system.speed(values, self.parameters)
            values |= {"sys/compiles": float(self.parts.sampler.compiles()), "sys/compiles_all": system.compiles()}
            self.writer.write(done, values, phase="rl")
            progress.step(number, values)
            if last or (c.checkpoint.every and done % c.checkpoint.every == 0):
                self._save()

    def _reference(self) -> Any:
        """The frozen policy of the KL term: the parameters RL started from."""
        if not reference_needed(self.config):
            return None
        try:
            with Checkpoints(self.workdir / "reference", keep=1) as reference:
                found = reference.restore(phase_like(self.config, self.parts, "rl"))
        except (ValueError, RuntimeError) as error:  # their messages name what is at fault
            raise ConfigError(str(error)) from error
        if found is None:
            raise ConfigError(f"{self.workdir}/reference is missing: the KL term needs the policy that RL started from")
        params = found.state.params
        return lora.joined(self.state.params, params) if self.parts.model.lora else params

    def _store(self, outcome: Outcome, step: int) -> None:
        """Episodes of process 0 with the credit each method would have given them: the leak made visible in the viewer."""
        if processes.index():
            return
        credits = {self.parts.algorithm.name: outcome.credit}
        for name in SHOWN_ALGORITHMS:
            credits.setdefault(name, algorithm(name, self.config.credit).credit(outcome.rollouts))
        save_episodes(
            episode_file(self.workdir, step), outcome.episodes, outcome.rollouts, credits, self.parts.tokenizer.decode,
            hidden=self.hidden, step=step, series=outcome.series,
        )  # fmt: skip

    # ---- shared

    def _advance(self, tasks: Any) -> None:
        self.position.step += 1
        self.position.number += 1
        self.position.stream = tasks.state()

    def _heed(self) -> None:
        """Leave an evaluation at once; with several processes only where all of them look (`_heed_all`)."""
        if self.stop.asked and processes.count() == 1:
            raise Stopped

    def _heed_all(self) -> None:
        """Leave between two steps when any process was asked to."""
        if processes.anywhere(self.stop.asked):
            raise Stopped

    def _stage(self, name: str, params: Any = None) -> None:
        """Evaluate once under `name`: a run that continues does not do it again."""
        if not any(row["name"] == name for row in self.position.results):
            own = self.fetch(self.state.params if params is None else params)
            self.position.results += run_stage(name, own, self.config, self.own, self.pulse.phase, self._heed)
