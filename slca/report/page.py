"""`report.html` of a run: before/after table, curves, the viewer of the latest episodes, the config. One file, no network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from slca.files import whole
from slca.report import episodes, metrics, viewer
from slca.report.curves import EVALUATED, compare_plots, interval, run_plots
from slca.report.plots import figure
from slca.report.progress import duration
from slca.report.redact import redact, redact_tree, secrets

FILE = "report.html"
RESULTS = "results.json"  # {"rows": [{"name", "split", "temperature", "metrics": {name: number}}]}
CONFIG = "config.json"
HEADLINE = ("success@0.9", "name", "argmatch", "process", "summary", "tool_turns")
SHOWN = (
    "credit.algorithm",
    "model.source",
    "model.family",
    "tasks.source",
    "sft.steps",
    "train.steps",
    "rollout.group",
    "run.seed",
)
Stages = dict[tuple[str, str], dict[str, list[float]]]  # (stage, group of runs) -> metric -> one value a seed
SEED_FIELDS = (("run", "seed"),)  # runs that differ in these alone are seeds of one experiment


def write_report(
    workdir: str | os.PathLike[str], *others: str | os.PathLike[str], out: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report of one run, or the comparison of several, and return its path (default `workdir/report.html`).

    A part that is missing is left out; a part that cannot be read is named in the page, so a report never ends a run.
    Raises FileNotFoundError when a workdir does not exist.
    """
    workdirs = [Path(workdir), *map(Path, others)]
    for folder in workdirs:
        if not folder.is_dir():
            raise FileNotFoundError(f"no run folder at {folder}")
    path = Path(out) if out is not None else workdirs[0] / FILE
    problems: list[str] = []
    body = _single(workdirs[0], problems) if len(workdirs) == 1 else _comparison(workdirs, problems)
    title = " · ".join(_names(workdirs)) if len(workdirs) < 5 else f"{len(workdirs)} runs"
    configs = [_read_json(folder / CONFIG, problems) for folder in workdirs]
    hidden = tuple({value for config in configs for value in secrets(config)})
    notes = "".join(f'<p class="problem">{escape(redact(problem, hidden))}</p>' for problem in problems)
    subtitle = _subtitle(configs[0]) if len(workdirs) == 1 else f"{len(workdirs)} runs side by side"
    page = viewer.page(title, f"<header><h1>{escape(title)}</h1><p class=note>{escape(subtitle)}</p></header>{notes}{body}")
    with whole(path) as file:
        file.write_text(redact(page, hidden), encoding="utf-8")
    return path


def _subtitle(config: Mapping[str, Any]) -> str:
    """What the run is, in one line: the fields of `SHOWN` that its config has."""
    flat = _flat(redact_tree(config))
    return " · ".join(f"{name} {flat[name].strip(chr(34))}" for name in SHOWN if name in flat)


def _single(folder: Path, problems: list[str]) -> str:
    rows = _guard(lambda: metrics.read(folder), [], problems)
    results = _read_json(folder / RESULTS, problems)
    config = _read_json(folder / CONFIG, problems)
    parts = [
        _guard(lambda: results_table({folder.name: [results]}), "", problems),
        _summary(rows),
        _curves(run_plots(_drawn(rows))),
    ]
    stored = episodes.latest(folder)
    if stored is not None:
        parts.append(_guard(lambda: viewer.section(episodes.load_episodes(stored)), "", problems))
    parts.append(_config(config))
    return "".join(parts)


def _comparison(folders: Sequence[Path], problems: list[str]) -> str:
    groups: dict[str, list[int]] = {}
    configs = [_read_json(folder / CONFIG, problems) for folder in folders]
    names, keys = _names(folders), [_key(config, folder) for config, folder in zip(configs, folders)]
    for k, key in enumerate(keys):
        groups.setdefault(names[keys.index(key)], []).append(k)
    rows = [_guard(lambda folder=folder: metrics.read(folder), [], problems) for folder in folders]
    results = [_read_json(folder / RESULTS, problems) for folder in folders]
    labels = {name: f"{name} ({len(members)} seeds)" if len(members) > 1 else name for name, members in groups.items()}
    tables = _guard(
        lambda: results_table({labels[name]: [results[k] for k in members] for name, members in groups.items()}), "", problems
    )
    curves = compare_plots({name: [_drawn(rows[k]) for k in members] for name, members in groups.items()})
    return tables + _curves(curves) + _differences(names, configs)


def results_table(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """HTML tables of `results.json` files, group of runs -> one a seed: a table a (split, temperature), a row a stage and group.

    Over seeds the mean ± its 95 % interval; beside each number its change from the group's first stage (untrained). Metrics
    that are not in `HEADLINE` fold away; evaluations during the run ("RL step n") are curves, not rows.
    Raises ValueError on another shape.
    """
    blocks: dict[tuple[str, str], Stages] = {}
    for group, results in groups.items():
        for row in (row for result in results for row in result.get("rows", ())):
            if not isinstance(row, Mapping) or not isinstance(row.get("metrics"), Mapping):
                raise ValueError(f"{RESULTS}: a row needs name, split, temperature and metrics; got {row!r:.200}")
            name = str(row.get("name", ""))
            if name.startswith("RL step"):
                continue
            block = blocks.setdefault((str(row.get("split", "")), str(row.get("temperature", ""))), {})
            stage = block.setdefault((name, group), {})
            for metric, value in row["metrics"].items():
                stage.setdefault(str(metric), []).append(float(value) if isinstance(value, int | float) else np.nan)
    if not blocks:
        return ""
    head = "".join(_block(key, stages, first=True) for key, stages in blocks.items())
    rest = "".join(_block(key, stages, first=False) for key, stages in blocks.items())
    more = f'<details><summary>all metrics</summary><div class="wide">{rest}</div></details>' if rest else ""
    return f'<section><h2>Before and after</h2><div class="blocks">{head}</div>{more}</section>'


def _block(key: tuple[str, str], stages: Stages, *, first: bool) -> str:
    """One table; metrics across and stages down for the headline, the other way round for the many others."""
    present = list(dict.fromkeys(metric for stage in stages.values() for metric in stage))
    chosen = [m for m in HEADLINE if m in present] if first else [m for m in present if m not in HEADLINE]
    if not chosen:
        return ""
    order = list(dict.fromkeys(name for name, _ in stages))
    names = sorted(stages, key=lambda item: order.index(item[0]))  # the same stage of all groups side by side
    several = len({group for _, group in stages}) > 1
    start = {group: stages[next(item for item in stages if item[1] == group)] for _, group in stages}

    def cell(item: tuple[str, str], metric: str) -> str:
        values, before = stages[item], start[item[1]]
        return f"<td>{_cell(values.get(metric, []), [] if values is before else before.get(metric, []))}</td>"

    rows = {" · ".join(item) if several else item[0]: {metric: cell(item, metric) for metric in chosen} for item in names}
    if not first:
        rows = {metric: {name: row[metric] for name, row in rows.items()} for metric in chosen}
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in next(iter(rows.values())))
    body = "".join(f"<tr><th scope=row>{escape(name)}</th>{''.join(row.values())}</tr>" for name, row in rows.items())
    decoding = "greedy" if key[1] in ("0", "0.0") else key[1] and f"temperature {key[1]}"
    caption = " · ".join(filter(None, [key[0], decoding]))
    return f"<table><caption>{escape(caption)}</caption><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(values: Sequence[float], start: Sequence[float]) -> str:
    """Mean, interval over seeds, and change from `start` ([] = this is the start)."""
    if not np.isfinite(values).any():
        return "–"
    centre, half = (float(x[0]) for x in interval(np.array(values, float)[:, None]))
    text = f"{centre:.3f}" if abs(centre) < 10 else f"{centre:.1f}"
    text += f" ± {half:.3f}" if np.isfinite(half) else ""
    return f"{text} <small>{centre - float(np.nanmean(start)):+.3f}</small>" if np.isfinite(start).any() else text


def _drawn(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the many scores of an evaluation that the tables show and no figure needs."""

    def drawn(name: str) -> bool:
        return not name.startswith("eval/") or name.rpartition("/")[2] in EVALUATED

    return [{name: value for name, value in row.items() if drawn(name)} for row in rows]


def _last_step(rows: Sequence[Mapping[str, Any]]) -> int:
    return max((int(row["step"]) for row in rows if row.get("phase", "rl") == "rl" and "step" in row), default=0)


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return '<p class="note">No metrics yet.</p>'
    times = [
        value for row in rows for name, value in row.items() if name.startswith("time/") and isinstance(value, int | float)
    ]
    return f'<p class="note">{len(rows)} lines of metrics, last RL step {_last_step(rows)}, {duration(sum(times))} in timed phases.</p>'


def _curves(plots: Sequence[tuple[str, str, Any]]) -> str:
    if not plots:
        return ""
    figures = "".join(figure(title, lines, note=note) for title, note, lines in plots)
    return f'<section><h2>Curves</h2><div class="plots">{figures}</div></section>'


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False)
    return flat


def _config(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in _flat(redact_tree(config)).items()
    )
    return (
        f"<section><h2>Config</h2><details><summary>every field</summary><table class=config>{rows}</table></details></section>"
    )


def _differences(names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> str:
    flat = [_flat(config) for config in configs]
    fields = [f for f in dict.fromkeys(k for each in flat for k in each) if len({each.get(f) for each in flat}) > 1]
    if not fields:
        return ""
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    cells = {f: "".join(f"<td>{escape(each.get(f, '–'))}</td>" for each in flat) for f in fields}
    rows = "".join(f"<tr><th scope=row>{escape(f)}</th>{row}</tr>" for f, row in cells.items())
    return (
        f'<section><h2>Where the configs differ</h2><div class="wide"><table class=config>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _key(config: Mapping[str, Any], folder: Path) -> str:
    """What makes two runs seeds of one experiment: everything in their configs but the seed. A run without a config stands alone."""
    if not config:
        return str(folder)
    without = {section: dict(fields) if isinstance(fields, Mapping) else fields for section, fields in config.items()}
    for section, name in SEED_FIELDS:
        if isinstance(without.get(section), dict):
            without[section].pop(name, None)
    return json.dumps(without, sort_keys=True)


def _names(folders: Sequence[Path]) -> list[str]:
    """Folder names, with their parents where names repeat."""
    names = [folder.resolve().name for folder in folders]
    return [f"{f.resolve().parent.name}/{n}" if names.count(n) > 1 else n for f, n in zip(folders, names)]


def _read_json(path: Path, problems: list[str]) -> dict[str, Any]:
    return _guard(lambda: dict(json.loads(path.read_text(encoding="utf-8"))), {}, problems) if path.exists() else {}


def _guard(read: Callable[[], Any], default: Any, problems: list[str]) -> Any:
    try:
        return read()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        message = re.sub(r"\s+", " ", str(error))[:300]
        if message not in problems:
            problems.append(message)
        return default
