"""The run: cold start, then rollout -> reward -> credit -> update, with evaluations, checkpoints and a report.

A run goes through two phases, `sft` and `rl` (either may have no steps), and ends. Its position is a handful of numbers
(`Position`), saved with the parameters; everything else is a function of the config, so a run that was killed continues with the same numbers.
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

from slca import processes
from slca.assemble import assemble, initial_params, own_parts
from slca.checkpoint import Checkpoints
from slca.credit.record import Algorithm
from slca.learn.sharding import put_whole, row_shards
from slca.learn.update import make_sft_update
from slca.phases import Position, phase_like, phase_optimizer, phase_placement, phase_state, phase_tasks
from slca.policy import lora
from slca.pulse import Pulse
from slca.reference import keep_reference, load_reference
from slca.reinforce import is_stored, make_step, named, update_shapes
from slca.report import system
from slca.report.console import log_through, print_table
from slca.report.episodes import save_step
from slca.report.metrics import Writer, finalize
from slca.report.page import write_report
from slca.report.progress import Progress
from slca.report.redact import secrets
from slca.restore import check_base
from slca.rollout.warm import compile_all
from slca.sft import demonstrations
from slca.stages import named_scores, run_stage, score
from slca.start import agreed, announce, count_parameters, prepare, told
from slca.stop import Stop, Stopped
from slca.validate import ConfigError
from slca.workdir import Silent, check_resume, check_workdir, lock, write_json

log = logging.getLogger("slca")

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
        stop = closing.enter_context(Stop())
        with agreed(), pulse.phase("start"):
            try:
                checkpoints = Checkpoints(workdir, keep=config.checkpoint.keep)
                trainer = Trainer(config, workdir, checkpoints, stored, record, pulse, stop)
            except (ImportError, OSError, sqlite3.Error) as error:
                raise ConfigError(f"{type(error).__name__}: {error}") from error
            except (ValueError, RuntimeError) as error:  # their messages name what is at fault
                raise ConfigError(str(error)) from error
        closing.callback(trainer.parts.simulator.close)
        closing.enter_context(checkpoints)
        closing.enter_context(trainer.writer)
        if processes.index() == 0:
            write_json(workdir / "config.json", stored)
        return told(pulse, trainer.run)


class Trainer:
    """One run in one process: the parts, the state, and the two loops over them."""

    def __init__(
        self, config: Any, workdir: Path, checkpoints: Checkpoints, stored: dict[str, Any], record: Algorithm | None, pulse: Pulse,
        stop: Stop,
    ):  # fmt: skip
        self.config, self.workdir, self.checkpoints, self.stored, self.pulse = config, workdir, checkpoints, stored, pulse
        self.stop = stop
        self.parts = assemble(config, record)
        self.own, self.fetch = own_parts(self.parts)
        self.hidden = secrets(stored)
        self.position = Position()
        self.state: Any = None  # a TrainState once the run has begun
        self.tasks: Any = None  # the stream of the phase, once it has been opened
        self.scored: list[dict[str, Any]] = []  # the evaluation of the parameters as they are now, [] = there was none
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
        self.position.extend(self.config)
        if self.position.phase in ("sft", "rl"):
            self.tasks = phase_tasks(self.config, self.position)  # here other tasks are refused before anything is compiled
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
                score=score(self.scored), extra=base,
            )  # fmt: skip
        self.saved = self.position.number
        system.trim()

    def _enter(self, phase: str) -> None:
        """Change the phase and save."""
        step, stream = (0, {}) if phase == "rl" else (self.position.step, self.position.stream)
        self.position = Position(phase, step, self.position.number + 1, stream, self.position.results)
        self.tasks = None
        self._save()

    # ---- the run

    def run(self) -> int:
        if self.position.ended(self.config):
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
            if self.position.phase != "rl" and self.config.train.steps:
                self._begin_rl(self.state.params)
            if self.position.phase == "rl":
                self._rl()
        except Stopped:
            return self._leave()
        self._wait()
        return self._finish()

    def _start(self) -> None:
        with self.pulse.phase("load"):
            params = initial_params(self.config, self.parts)
        self._compile(params)
        self._stage("untrained", params)
        if self.config.sft.steps or not self.config.train.steps:
            self.state = phase_state(self.config, self.parts, "sft", params)
        else:
            self._begin_rl(params)

    def _compile(self, params: Any) -> None:
        """Every program of the sampler, before the first rollout or evaluation waits for one; those of the update follow in RL's first step."""
        with self.pulse.phase("compile"):
            sampler = self.own.sampler
            compile_all(sampler, sampler.prepare(self.fetch(params)), self.own.template.stop_ids, appends=True)
        system.trim()
        self._heed_all()

    def _begin_rl(self, params: Any) -> None:
        """The state that RL starts with: these parameters, a new optimizer, a new task stream; keep the reference policy."""
        self.state = phase_state(self.config, self.parts, "rl", params)
        keep_reference(self.workdir, self.config, self.state, self.stored)
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
        report = self._publish()
        self.pulse.progress.close()  # its bars would stand over the table
        print_table(self.position.results)
        print(f"report: {report}")
        return 0

    def _publish(self) -> Path:
        """The scores so far and the report, in the run folder."""
        write_json(self.workdir / "results.json", {"rows": self.position.results})
        return write_report(self.workdir)

    # ---- cold start

    def _sft(self) -> None:
        c, parts, progress = self.config, self.parts, self.pulse.progress
        tx, placement = phase_optimizer(c, parts.model, "sft"), phase_placement(c, parts, "sft")
        update = make_sft_update(parts.hidden, parts.unembed, tx, c, mesh=parts.mesh, placement=placement)
        tasks = self.tasks or phase_tasks(c, self.position)
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
        if c.sft.steps:
            self._stage("after SFT")
        if not c.train.steps:
            self._enter("sft_done")

    # ---- reinforcement

    def _rl(self) -> None:
        c, progress = self.config, self.pulse.progress
        tx, placement = phase_optimizer(c, self.parts.model, "rl"), phase_placement(c, self.parts, "rl")
        tasks = self.tasks or phase_tasks(c, self.position)
        spare = tasks.shuffled(c.run.seed + 2).at if c.rollout.resample and c.rollout.resample_fresh else None
        reference = load_reference(self.workdir, c, self.parts, self.state.params)
        step = make_step(c, self.parts, tx, placement, reference, self.pulse.phase, self.pulse.watch, spare)
        shapes = ", ".join(f"[{rows}, {length}]" for length, rows in update_shapes(c, self.parts).items())
        log.info("update programs (rows, tokens): %s", shapes)
        progress.stage("rl", c.train.steps, self.position.step)
        while self.position.step < c.train.steps:
            self._heed_all()
            self._look()  # again where a run goes on that was stopped in the middle of it
            number = self.position.step
            traced = number == c.run.profile_step and processes.index() == 0
            began = time.monotonic()
            with jax.profiler.trace(str(self.workdir / "profile")) if traced else contextlib.nullcontext():
                self.state, outcome = step(self.state, tasks.next(c.rollout.prompts), number)
            done, last = number + 1, number + 1 == c.train.steps
            self._advance(tasks)
            if is_stored(c, number) and processes.index() == 0:
                save_step(
                    self.workdir, number, outcome.episodes, outcome.rollouts, {self.parts.algorithm.name: outcome.credit},
                    self.parts.tokenizer.decode, c, hidden=self.hidden, series=outcome.series,
                )  # fmt: skip
            values = outcome.values | {"time/step": time.monotonic() - began}
            values |= system.memory() | system.speed(values, self.parameters)
            values |= {"sys/compiles": float(self.parts.sampler.compiles()), "sys/compiles_all": system.compiles()}
            self.writer.write(done, values, phase="rl")
            progress.step(number, values)
            self._look()  # before the save, so that a checkpoint carries the score of its own parameters
            if last or (c.checkpoint.every and done % c.checkpoint.every == 0):
                self._save()
        self._stage("after RL")
        self._enter("done")

    def _look(self) -> None:
        """Evaluate between two steps, where one is due."""
        step, every = self.position.step, self.config.eval.every
        if every and 0 < step < self.config.train.steps and step % every == 0:
            self._stage(f"RL step {step}")

    # ---- shared

    def _advance(self, tasks: Any) -> None:
        self.position.step += 1
        self.position.number += 1
        self.position.stream = tasks.state()
        self.scored = []

    def _heed(self) -> None:
        """Leave an evaluation at once; with several processes only where all of them look (`_heed_all`)."""
        if self.stop.asked and processes.count() == 1:
            raise Stopped

    def _heed_all(self) -> None:
        """Leave between two steps when any process was asked to."""
        if processes.anywhere(self.stop.asked):
            raise Stopped

    def _stage(self, name: str, params: Any = None) -> None:
        """Evaluate once under `name`: a run that continues does not do it again. The scores go where a person may look meanwhile."""
        if any(row["name"] == name for row in self.position.results):
            return
        own = self.fetch(self.state.params if params is None else params)
        self.scored = run_stage(name, own, self.config, self.own, self.pulse.phase, self._heed)
        if not self.scored:  # no split to evaluate on
            return
        self.position.results += self.scored
        self.writer.write(self.position.step if self.position.phase == "rl" else 0, named_scores(self.scored), phase="eval")
        if processes.index() == 0:
            try:
                with self.pulse.phase("report"):
                    self._publish()
            except OSError as error:  # the run's own files will say more of a disk that is full; a page is no reason to end
                log.warning("no report for now: %s", error)
