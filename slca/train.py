"""The run: cold start, then rollout -> reward -> credit -> update, with evaluations, checkpoints and a report.

A run goes through two phases, `sft` and `rl`, and is `done`. Its position is a handful of numbers (`Position`), saved with
the parameters; everything else is a function of the config, so a run that was killed continues with the same numbers.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from slca.assemble import assemble, initial_params
from slca.checkpoint import Checkpoints, config_diff
from slca.credit import diagnostics
from slca.credit.algorithms import algorithm
from slca.evals.indomain import evaluate, summarize
from slca.learn.batch import Batch, pack, pack_sft, padding_share
from slca.learn.optim import optimizer, schedule
from slca.learn.probe import make_logprob
from slca.learn.sharding import put_batch, row_shards, state_shardings
from slca.learn.terms import make_terms
from slca.learn.update import init_state, make_sft_update, make_update
from slca.policy import transformer
from slca.report.behaviour import behaviour
from slca.report.episodes import episode_file, save_episodes
from slca.report.metrics import Writer, finalize, merge
from slca.report.page import write_report
from slca.report.redact import redact_tree, secrets
from slca.rewards.annotate import annotate
from slca.rewards.annotate import metrics as reward_metrics
from slca.rewards.judge import graders
from slca.rollout.engine import rollout
from slca.sft import corrupt, encode_demo
from slca.tasks.datasets import evaluation_tasks, stream
from slca.types import Episode, Rollouts, TrainState
from slca.validate import ConfigError, validate

log = logging.getLogger("slca")

SHOWN_ALGORITHMS = ("slca", "grpo", "toolpo", "rltr")  # credits stored beside the trained one, for the viewer


@dataclass
class Position:
    """Where a run stands. step counts within the phase; stream is the state of the phase's task stream."""

    phase: str = "sft"  # sft | rl | done
    step: int = 0
    stream: dict[str, Any] = field(default_factory=dict)
    results: list[dict[str, Any]] = field(default_factory=list)


class Stop:
    """SIGTERM and SIGINT ask a run to save and leave; a second one ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                signal.signal(number, self._ask)
            except ValueError:  # not the main thread (a notebook's worker): no handler, no harm
                return

    def _ask(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        log.warning("%s: saving after this step, then leaving", signal.Signals(number).name)


def run(config: Any, workdir: str | os.PathLike[str], *, resume: bool = True, allow_config_change: bool = False) -> int:
    """Train, or continue, the run of `workdir`. Returns the exit code: 0 = finished, or stopped by a signal and resumable.

    Raises ConfigError for a config that cannot run, or that differs from the one the workdir was started with.
    """
    validate(config)
    _log_to_stdout()
    workdir = Path(workdir)
    stored = _open_workdir(workdir, config, resume, allow_config_change)
    with Checkpoints(workdir, keep=config.checkpoint.keep) as checkpoints:
        trainer = Trainer(config, workdir, checkpoints, stored)
        return trainer.run()


def _log_to_stdout() -> None:
    """Progress as plain lines on standard output; other libraries speak from WARNING on."""
    logging.getLogger().setLevel(logging.WARNING)
    if not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.propagate = False
    log.setLevel(logging.INFO)


def _open_workdir(workdir: Path, config: Any, resume: bool, allow_config_change: bool) -> dict[str, Any]:
    """Make the folder and its config.json; returns the config as stored. Refuses a folder that holds another run."""
    now = redact_tree(json.loads(json.dumps(config.to_dict())), secrets(config.to_dict()))
    file = workdir / "config.json"
    if file.is_file():
        if not resume:
            raise ConfigError(f"{workdir} holds a run already; continue it (--resume) or name another --workdir")
        changes = config_diff(json.loads(file.read_text()), now)
        if changes and not allow_config_change:
            lines = "\n  ".join(changes)
            raise ConfigError(
                f"{workdir} was started with another config; use another --workdir, or --allow-config-change:\n  {lines}"
            )
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        temporary = workdir / ".config.json.tmp"
        temporary.write_text(json.dumps(now, indent=1))
        os.replace(temporary, file)
    except OSError as error:
        raise ConfigError(f"--workdir={workdir}: cannot write there ({error})") from error
    return now


class Trainer:
    """One run in one process: the parts, the state, and the two loops over them."""

    def __init__(self, config: Any, workdir: Path, checkpoints: Checkpoints, stored: dict[str, Any]):
        self.config, self.workdir, self.checkpoints, self.stored = config, workdir, checkpoints, stored
        self.stop = Stop()
        self.parts = assemble(config)
        self.hidden = secrets(stored)
        self.position = Position()
        self.state: TrainState | None = None
        self.graders = graders(config)
        self.update_rl: Any = None
        offset = self._restore()
        self.writer = Writer(
            workdir, offset=offset, tensorboard=config.report.tensorboard, wandb=config.report.wandb, config=stored
        )

    # ---- position, state, files

    def _restore(self) -> int:
        """Take up the newest checkpoint, if any; returns the offset into metrics.jsonl to continue at."""
        found = self.checkpoints.restore(lambda saved: self._like(saved["data"]["phase"]))
        if found is None:
            return 0
        self.position, self.state = Position(**found.data), found.state
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
        done = self.position.step + (self.config.sft.steps if self.position.phase != "sft" else 0)
        self.checkpoints.save(
            done, self.state, asdict(self.position), self.stored, metrics_offset=self.writer.offset(),
            score=self._score(),
        )  # fmt: skip

    def _score(self) -> float | None:
        """What `best` means: sampled success on the first split of the newest evaluation."""
        rows = [row for row in self.position.results if row["split"] == self.config.eval.splits[0]]
        return rows[-1]["metrics"].get("success@0.9") if rows else None

    # ---- the run

    def run(self) -> int:
        if self.position.phase == "done":
            log.info("%s is finished", self.workdir)
            return self._finish()
        self._announce()
        if self.state is None:
            self._start()
        if self.position.phase == "sft":
            self._sft()
            if self.stop.asked:
                return self._leave()
            self._begin_rl()
        self._rl()
        if self.stop.asked:
            return self._leave()
        self.position.phase = "done"
        self._save()
        self.checkpoints.wait()
        return self._finish()

    def _announce(self) -> None:
        sampler, model = self.parts.sampler, self.parts.model
        count = sum(np.prod(x.shape) for x in jax.tree.leaves(jax.eval_shape(lambda: transformer.init(model, jax.random.key(0)))))
        log.info(
            "%s · %s %.2f M parameters · %d device(s) %s · cache of %d slots %.0f MiB · sampler programs: %s",
            self.parts.algorithm.name, model.family, count / 1e6, jax.device_count(), jax.devices()[0].platform,
            sampler.slots, sampler.nbytes() / 2**20, ", ".join(f"{name}{list(shape)}" for name, shape in sampler.programs),
        )  # fmt: skip

    def _start(self) -> None:
        params = initial_params(self.config, self.parts)
        phase = "sft" if self.config.sft.steps else "rl"
        self._evaluate("untrained", params)
        self.position.phase = phase
        self.state = init_state(params, self._optimizer(phase), jax.random.key(self.config.run.seed))
        if phase == "rl":
            self._begin_rl(fresh=False)

    def _begin_rl(self, fresh: bool = True) -> None:
        """Turn the cold start's state into RL's: same parameters, new optimizer, a new task stream; keep the reference policy."""
        params = self.state.params
        if fresh:
            self._evaluate("after SFT", params)
        self.state = init_state(params, self._optimizer("rl"), jax.random.key(self.config.run.seed))
        self.position = Position("rl", 0, {}, self.position.results)
        if self._reference_needed():
            with Checkpoints(self.workdir / "reference", keep=1) as reference:
                reference.save(0, self.state, {}, self.stored)
        self._save()

    def _reference_needed(self) -> bool:
        return self.config.loss.kl_coef > 0 or self.config.train.keep_reference

    def _leave(self) -> int:
        self._save()
        self.checkpoints.wait()
        log.info("saved %s at %s step %d; the same command continues", self.workdir, self.position.phase, self.position.step)
        return 0

    def _finish(self) -> int:
        (self.workdir / "results.json").write_text(json.dumps({"rows": self.position.results}, indent=1))
        report = write_report(self.workdir)
        print_table(self.position.results)
        print(f"report: {report}")
        return 0

    # ---- cold start

    def _sft(self) -> None:
        c = self.config
        update = make_sft_update(
            self.parts.hidden, self.parts.unembed, self._optimizer("sft"), c, mesh=self.parts.mesh, placement=self._placement("sft")
        )
        tasks = stream(c.tasks, "train", c.run.seed)
        if self.position.stream:
            tasks.restore(self.position.stream)
        while self.position.step < c.sft.steps and not self.stop.asked:
            batch, examples, seconds = self._demonstrations(tasks, self.position.step)
            began = time.monotonic()
            self.state, metrics = update(self.state, self._put(batch))
            self.position.step += 1
            self.position.stream = tasks.state()
            values = finalize(jax.device_get(metrics))
            values |= {"tasks": float(examples), "time/data": seconds, "time/update": time.monotonic() - began}
            self.writer.write(self.position.step, _named("sft", values), phase="sft")
            if self.position.step % 20 == 0 or self.position.step == 1:
                log.info("sft %d/%d loss %.3f", self.position.step, c.sft.steps, values.get("loss", float("nan")))
            if c.checkpoint.sft_every and self.position.step % c.checkpoint.sft_every == 0 and self.position.step < c.sft.steps:
                self._save()

    def _demonstrations(self, tasks: Any, step: int) -> tuple[Batch, int, float]:
        """One packed batch: demonstrations are drawn until its rows are full."""
        began = time.monotonic()
        c = self.config
        room = c.sft.batch_rows * c.sft.row_length * 0.97
        examples: list[tuple[np.ndarray, np.ndarray]] = []
        while True:
            task = tasks.next(1)[0]
            rng = np.random.default_rng([c.run.seed, step, len(examples)])
            tokens, weight = encode_demo(corrupt(task, rng, c.sft.noise), self.parts.template)
            if len(tokens) > c.sft.row_length:
                continue
            examples.append((tokens, weight))
            room -= len(tokens)
            if room < c.sft.row_length / 2:
                break
        batches = pack_sft(examples, c, data_size=row_shards(self.parts.mesh))
        return batches[0], len(examples), time.monotonic() - began

    # ---- reinforcement

    def _rl(self) -> None:
        c = self.config
        optimizer_rl, placement = self._optimizer("rl"), self._placement("rl")
        parts, mesh = self.parts, self.parts.mesh
        terms = make_terms(parts.algorithm.terms)
        self.update_rl = make_update(parts.hidden, parts.unembed, optimizer_rl, c, mesh=mesh, placement=placement, terms=terms)
        score = make_logprob(parts.hidden, parts.unembed, c, mesh=mesh, params_at=placement and placement.params)
        reference = self._reference()
        tasks = stream(c.tasks, "train", c.run.seed + 1)
        if self.position.stream:
            tasks.restore(self.position.stream)
        while self.position.step < c.train.steps and not self.stop.asked:
            step = self.position.step
            values = self._rl_step(tasks.next(c.rollout.prompts), step, score, reference)
            self.position.step, self.position.stream = step + 1, tasks.state()
            self.writer.write(step + 1, values, phase="rl")
            log.info(_line(step + 1, c.train.steps, values))
            last = step + 1 == c.train.steps
            if last or (c.eval.every and (step + 1) % c.eval.every == 0):
                self._evaluate("after RL" if last else f"RL step {step + 1}", self.state.params)
            if not last and c.checkpoint.every and (step + 1) % c.checkpoint.every == 0:
                self._save()
        if not c.train.steps:
            return

    def _rl_step(self, tasks: Sequence[Any], step: int, score: Any, reference: Any) -> dict[str, float]:
        c, times = self.config, {}
        began = time.monotonic()
        stats: dict[str, float] = {}
        episodes = rollout(
            self.state.params, tasks, self.parts.sampler, self.parts.template, self.parts.simulator, c,
            seed=c.run.seed, step=step, stats=stats,
        )  # fmt: skip
        times["rollout"] = time.monotonic() - began
        began = time.monotonic()
        rollouts = annotate(episodes, c, **self.graders)
        credit = self.parts.algorithm.credit(rollouts)
        times["reward"] = time.monotonic() - began
        if c.report.episodes_every and (step % c.report.episodes_every == 0 or step + 1 == c.train.steps):
            self._store(episodes, rollouts, credit, step)
        began = time.monotonic()
        batches = pack(episodes, credit, None, c, data_size=row_shards(self.parts.mesh))
        padding = merge(*({"train/padding": padding_share(b, c.train.micro_rows * row_shards(self.parts.mesh))} for b in batches))
        metrics = self._update([self._put(batch) for batch in batches], score, reference)
        times["update"] = time.monotonic() - began
        values = {f"rollout/{name}": value for name, value in describe(episodes, rollouts, credit, c, self.parts.algorithm.options).items()}
        values |= _named("engine", stats)
        values |= _named("train", metrics) | finalize(padding)
        values |= {f"time/{name}": seconds for name, seconds in times.items()}
        values |= {"sys/compiles": float(self.parts.sampler.compiles()), "sys/rss": _rss()}
        values |= _named("sgls", self.parts.simulator.metrics(reset=True))
        return values

    def _update(self, batches: list[Batch], score: Any, reference: Any) -> dict[str, float]:
        """`mu` sweeps over the mini-batches. Old log-probs are taken once, before the first optimiser step, where they are needed."""
        c = self.config
        if c.train.mu * len(batches) > 1:
            batches = [batch._replace(old_logprob=score(self.state.params, batch)) for batch in batches]
        if reference is not None:
            batches = [batch._replace(ref_logprob=score(reference, batch)) for batch in batches]
        found = []
        for _ in range(c.train.mu):
            for batch in batches:
                self.state, metrics = self.update_rl(self.state, batch)
                found.append(metrics)
        return finalize(merge(*jax.device_get(found)))

    def _reference(self) -> Any:
        """The frozen policy of the KL term: the parameters RL started from."""
        if not self._reference_needed():
            return None
        with Checkpoints(self.workdir / "reference", keep=1) as reference:
            return reference.restore(self._like("rl")).state.params

    def _store(self, episodes: list[Episode], rollouts: Rollouts, credit: np.ndarray, step: int) -> None:
        """Episodes with the credit each method would have given them: the leak made visible in the viewer."""
        credits = {self.parts.algorithm.name: credit}
        for name in SHOWN_ALGORITHMS:
            credits.setdefault(name, algorithm(name, self.config.credit).credit(rollouts))
        save_episodes(
            episode_file(self.workdir, step), episodes, rollouts, credits, self.parts.tokenizer.decode, hidden=self.hidden, step=step
        )

    # ---- shared

    def _placement(self, phase: str) -> TrainState | None:
        return None if self.parts.mesh is None else jax.tree.map(lambda x: x.sharding, self._like(phase))

    def _put(self, batch: Batch) -> Batch:
        return batch if self.parts.mesh is None else put_batch(batch, self.parts.mesh)

    def _evaluate(self, name: str, params: Any) -> None:
        """Add a row a split and temperature to the results; the tasks and the draws are the same every time."""
        c = self.config
        for split in c.eval.splits:
            tasks = evaluation_tasks(c.tasks, split, c.eval.tasks, c.eval.seed)
            for temperature in c.eval.temperatures:
                began = time.monotonic()
                found = evaluate(
                    params, tasks, self.parts.sampler, self.parts.template, self.parts.simulator, c,
                    temperature=temperature, seed=c.eval.seed,
                )  # fmt: skip
                self.parts.simulator.metrics(reset=True)  # its counters speak of training steps
                metrics = {key: mean for key, (mean, n) in found.items() if n}
                row = {"name": name, "split": split, "temperature": temperature, "n": len(tasks), "metrics": metrics}
                self.position.results.append(row)
                log.info(
                    "%s · %s · T=%g: success@0.9 %.3f, summary %.3f (%d tasks, %.1f s)", name, split, temperature,
                    metrics.get("success@0.9", float("nan")), metrics.get("summary", float("nan")), len(tasks), time.monotonic() - began,
                )  # fmt: skip


def describe(episodes: list[Episode], rollouts: Rollouts, credit: np.ndarray, config: Any, options: Any) -> dict[str, float]:
    """Numbers of a rollout batch: scores, rewards by channel, contamination diagnostics."""
    scores = {name: mean for name, (mean, n) in summarize(episodes, config).items() if n}
    pairs = merge(reward_metrics(rollouts), behaviour(episodes), diagnostics.diagnose(rollouts, credit, options))
    return scores | finalize(pairs)


def print_table(results: Sequence[Mapping[str, Any]]) -> None:
    """The before/after table on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="held-out results")
    columns = {"Success@0.9": "success@0.9", "Name F1": "name", "ArgMatch": "argmatch", "Summary": "summary", "Tool turns": "tool_turns"}
    for name in ("split", "decoding", "stage", *columns):
        table.add_column(name, justify="left" if name in ("split", "decoding", "stage") else "right")
    rows = [row for row in results if not row["name"].startswith("RL step")]
    for row in sorted(rows, key=lambda row: (row["split"], row["temperature"])):
        decoding = "greedy" if row["temperature"] == 0 else f"T = {row['temperature']:g}"
        values = [row["metrics"].get(key) for key in columns.values()]
        table.add_row(row["split"], decoding, row["name"], *("–" if v is None else f"{v:.3f}" for v in values))
    Console().print(table)


def _line(step: int, steps: int, values: Mapping[str, float]) -> str:
    def show(name: str) -> str:
        return f"{values[name]:.3f}" if name in values else "–"

    return (
        f"rl {step}/{steps} tool {show('rollout/reward/tool')} summary {show('rollout/reward/summary')} "
        f"success@0.9 {show('rollout/success@0.9')} grad {show('train/grad_norm')} "
        f"rollout {show('time/rollout')} s update {show('time/update')} s"
    )


def _named(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {name if name.startswith("time/") else f"{prefix}/{name}": value for name, value in values.items()}


def _rss() -> float:
    """Peak resident memory of this process, bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
