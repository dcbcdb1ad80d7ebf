"""Files of rows, read one row at a time, and files of tasks, which appear when they are complete."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slca.files import whole

if TYPE_CHECKING:
    from slca.types import Task

Row = Mapping[str, Any]


def rows(paths: Sequence[str]) -> Iterator[Row]:
    """Rows of parquet, JSON (a list) or JSON lines files, in order. Raises ValueError naming the file, ImportError without
    pyarrow."""
    for path in paths:
        try:
            if path.endswith(".parquet"):
                yield from _parquet(path)
            elif path.endswith(".json"):
                yield from _listed(path)
            else:
                yield from _lines(path)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); convert it first") from None
        except RecursionError:
            raise ValueError(f"{path}: nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _listed(path: str) -> Iterator[Row]:
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(found, list):
        raise ValueError(f"must be a list of rows, each an object; it is {_kind(found)}")
    for number, row in enumerate(found):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number} must be an object; it is {_kind(row)}")
        yield row


def _lines(path: str) -> Iterator[Row]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: not JSON: {error.msg} (column {error.colno})") from None
            if not isinstance(row, Mapping):
                raise ValueError(f"line {number} must be an object; it is {_kind(row)}")
            yield row


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _parquet(path: str) -> Iterator[Row]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError("parquet files need pyarrow: pip install 'slca[data]'") from None
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
        yield from batch.to_pylist()


class Nothing(Exception):
    """No row of the files was usable, so nothing was written. counts: what became of the rows."""

    def __init__(self, paths: Sequence[str], left: Sequence[Path], counts: Counter[str]):
        kept = [str(path) for path in left if path.exists()]
        rest = f"; {' and '.join(kept)}: left as before" if kept else ""
        super().__init__(f"no usable row in {', '.join(paths)}{rest}")
        self.counts = counts


class Writer:
    """One task a line; the file appears when it is complete."""

    def __init__(self, path: Path):
        self.path = path
        self._open = ExitStack()

    def __enter__(self) -> Writer:
        self._file = self._open.enter_context(self._open.enter_context(whole(self.path)).open("w", encoding="utf-8"))
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def write(self, task: Task, split: str) -> None:
        from slca.tasks.datasets import task_to_dict

        self._file.write(json.dumps({**task_to_dict(task), "split": split}, ensure_ascii=False) + "\n")
