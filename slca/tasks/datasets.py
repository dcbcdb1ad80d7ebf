"""Tasks from wherever they are kept, as one ordered stream that resumes exactly.

    tasks = stream(config.tasks, "train", seed)
    batch = tasks.next(16); state = tasks.state()        # tiny and JSON-able
    stream(config.tasks, "train", seed).restore(state)   # goes on with the seventeenth

`config.tasks.source`: `synth` (made on the fly), `botocore` (the same over real API schemas), `jsonl:FILE`, `tfds:DIR`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from slca.files import whole
from slca.tasks import catalog, shapes, synthesize
from slca.types import Task, ToolCall

FORMAT = 1  # of a stored task
_FIELDS = frozenset(field.name for field in dataclasses.fields(Task))


def task_to_dict(task: Task) -> dict[str, Any]:
    """A task as JSON data; `task_from_dict` gives an equal one back."""
    out = {name: getattr(task, name) for name in sorted(_FIELDS)}
    out["gold_steps"] = [[dataclasses.asdict(call) for call in step] for step in task.gold_steps]
    return {"format": FORMAT, **out}


def task_from_dict(data: Mapping[str, Any]) -> Task:
    """The task of `task_to_dict`. Raises ValueError that names the field that is missing, unknown or malformed."""
    if not isinstance(data, Mapping):
        raise ValueError(f"a task must be an object, got {type(data).__name__}")
    fields = {key: value for key, value in data.items() if key != "format"}
    if data.get("format", FORMAT) != FORMAT:
        raise ValueError(f"task format {data['format']!r} is not {FORMAT}")
    unknown = sorted(fields.keys() - _FIELDS)
    missing = [name for name in ("id", "messages", "tools", "gold_steps") if name not in fields]
    if unknown or missing:
        raise ValueError(
            f"task {data.get('id', '?')!r}: "
            + "; ".join([*(f"unknown field {n}" for n in unknown), *(f"{n} is missing" for n in missing)])
        )
    try:
        fields["gold_steps"] = [[ToolCall(**call) for call in step] for step in fields["gold_steps"]]
    except TypeError as error:
        raise ValueError(f"task {data['id']!r}: gold_steps must be lists of lists of calls ({error})") from None
    if faults := shapes.faults(fields):
        raise ValueError(f"task {data['id']!r}: {'; '.join(faults)}")
    return Task(**fields)


def write_jsonl(path: str | Path, tasks: Iterable[Task]) -> int:
    """One task a line, UTF-8; the file appears when it is complete. Returns how many."""
    count = 0
    with whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        for task in tasks:
            file.write(json.dumps(task_to_dict(task), ensure_ascii=False) + "\n")
            count += 1
    return count


def read_jsonl(path: str | Path) -> list[Task]:
    """Every task of a file. Raises ValueError with file and line of the first bad one, or of one that nobody can do."""
    seen: shapes.Seen = {}
    return [_parse_line(path, number, line, seen) for number, line in enumerate(_lines(path), 1) if line.strip()]


def materialise(directory: str | Path, seed: int, sizes: Mapping[str, int], **options: Any) -> Path:
    """Write the tfds dataset `slca_tasks` under `directory` and return its folder. options as in `synthesize.tasks`.

    Raises ValueError when `directory` already holds the dataset: tfds would keep the old content without a word.
    """
    from slca.tasks.builder import SlcaTasks

    builder = SlcaTasks(data_dir=str(directory), seed=seed, sizes=sizes, options=options)
    if Path(builder.data_dir).exists():
        raise ValueError(f"{builder.data_dir} exists already; choose another directory or remove it")
    builder.download_and_prepare()
    return Path(builder.data_dir)


class Stream:
    """An endless, ordered stream over a dataset: epoch after epoch, each with its own shuffle.

    What comes at position k is a pure function of (dataset, seed, k).
    """

    def __init__(self, read: Callable[[int], Task], size: int, identity: str, seed: int, unused: int = 0):
        import grain

        self._tasks = grain.MapDataset.range(size).seed(seed % 2**32).shuffle().repeat().map(read)
        self._read, self._size, self._identity = read, size, identity
        self.unused = unused  # tasks of the source that never come
        self._position = 0

    def next(self, n: int) -> list[Task]:
        """The next n tasks."""
        first, self._position = self._position, self._position + n
        return [self._tasks[k] for k in range(first, first + n)]

    def back(self, n: int) -> None:
        """The last n tasks come again. Raises ValueError where fewer were taken."""
        if n > self._position:
            raise ValueError(f"{n} tasks cannot go back: {self._position} tasks were taken")
        self._position -= n

    def at(self, position: int) -> Task:
        """The task of a position; does not move the stream."""
        return self._tasks[position]

    def shuffled(self, seed: int) -> Stream:
        """The same tasks in another order, from the start."""
        return Stream(self._read, self._size, f"{self._identity} seed={seed}", seed, self.unused)

    def state(self) -> dict[str, Any]:
        return {"next_index": self._position, "dataset": self._identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken. Raises ValueError when it belongs to another dataset: positions mean nothing there."""
        if state.get("dataset") != self._identity:
            raise ValueError(
                f"the saved position is of dataset {state.get('dataset')!r}, this is {self._identity!r}; start a new run"
            )
        self._position = int(state["next_index"])


def stream(config: Any, split: str, seed: int) -> Stream:
    """The stream of `config` (the section `tasks`); split `train` has the first `config.train` tasks, if there are more.

    Raises ValueError naming the field or file at fault.
    """
    read, stored, identity = _open(config, split, seed)
    size = _size(config, split, stored, config.train)
    unused = stored - size if stored is not None else 0
    # Where nothing is left out, the bound is no part of what the stream is.
    first = f" first={size}" if unused else ""
    return Stream(read, size, f"{identity}{first} split={split} seed={seed}", seed, unused)


def evaluation_tasks(config: Any, split: str, n: int, seed: int) -> list[Task]:
    """The first n tasks of a split in stored order (fewer if it has fewer): the same ones every time."""
    read, stored, _ = _open(config, split, seed)
    return [read(i) for i in range(min(n, _size(config, split, stored, n)))]


def _size(config: Any, split: str, stored: int | None, wanted: int) -> int:
    """Tasks of a split: as many as are stored or, where they are made, wanted; of `train` at most `config.train`."""
    size = wanted if stored is None else stored
    return min(size, config.train) if split == "train" else size


def _open(config: Any, split: str, seed: int) -> tuple[Callable[[int], Task], int | None, str]:
    """(task of an index, how many are stored, identity of the content) of a source; None: they are made, without an end."""
    source, _, place = config.source.partition(":")
    options = {"kinds": tuple(config.kinds), "max_tools": config.max_tools, "made_up": config.made_up}
    if source == "synth":
        made = synthesize.builtin_source(seed, split, domains=tuple(config.domains), **options)
        return made.task, None, f"synth:{_sample(made, options, list(config.domains), config.train)}"
    if source == "botocore":
        made = synthesize.spec_source(_botocore_specs(), seed, split, **options)
        return made.task, None, f"botocore:{_sample(made, options, config.train)}"
    if source == "jsonl" and place:
        return _open_jsonl(place, split)
    if source == "tfds" and place:
        return _open_tfds(place, split)
    raise ValueError(f"tasks.source {config.source!r}: must be synth, botocore, jsonl:FILE or tfds:DIR")


def _sample(made: synthesize.TaskSource, *options: Any) -> str:
    """A digest of the options and of some tasks: another version of the generator is another dataset."""
    return _digest(options, [task_to_dict(made.task(i)) for i in range(16)])


@lru_cache(maxsize=1)
def _botocore_specs() -> list[dict[str, Any]]:
    return catalog.botocore()


def _open_jsonl(path: str, split: str) -> tuple[Callable[[int], Task], int, str]:
    """Rows of the split; `{split}` in the path picks a file a split instead."""
    chosen = path.replace("{split}", split)
    lines = [(number, line) for number, line in enumerate(_lines(chosen), 1) if line.strip()]
    seen: shapes.Seen = {}
    # All lines: a bad one is found now, not in step 200.
    splits = [_parse_line(chosen, number, line, seen).split for number, line in lines]
    if chosen == path:
        lines = [line for line, own in zip(lines, splits, strict=True) if own == split]
    if not lines:
        raise ValueError(f"tasks.source: {chosen} holds no task of split {split!r}")
    return (lambda i: _parse_line(chosen, *lines[int(i)])), len(lines), f"jsonl:{_digest([line for _, line in lines])}"


def _lines(path: str | Path) -> Sequence[str]:
    try:
        return Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"tasks.source: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"tasks.source: {path} is not UTF-8 (byte {error.start}: {error.reason}); convert it first") from None


def _parse_line(path: str | Path, number: int, line: str, seen: shapes.Seen | None = None) -> Task:
    """The task of a line; with `seen`, it must be one that can be done."""
    try:
        task = task_from_dict(json.loads(line))
        if seen is not None and (fault := shapes.impossible(task, seen)):
            raise ValueError(f"task {task.id!r}: {fault}")
        return task
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number}: not JSON: {error.msg} (column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number}: {error}") from None


def _open_tfds(directory: str, split: str) -> tuple[Callable[[int], Task], int, str]:
    import tensorflow_datasets as tfds

    from slca.tasks import builder as _  # noqa: F401  (registers the name slca_tasks)

    try:
        if (Path(directory) / "dataset_info.json").exists():
            data = tfds.builder_from_directory(directory).as_data_source(split=split)
        else:
            data = tfds.data_source("slca_tasks", data_dir=directory, split=split, download=False)
    except Exception as error:  # tfds raises many kinds; the first line says which
        raise ValueError(
            f"tasks.source: cannot read split {split!r} of {directory}: {str(error).splitlines()[0]:.300}"
        ) from error

    def read(i: int) -> Task:
        return task_from_dict(json.loads(data[int(i)]["task"]))

    return read, len(data), f"tfds:{_content(directory, split)}"


def _content(directory: str, split: str) -> str:
    """A digest of the record files of a split."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(directory).rglob(f"*-{split.partition('[')[0]}.array_record*")):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _digest(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=list)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
