"""Files that appear when they are complete, and whose faults are told of the name that a user gave."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its name at the end and goes where the block fails; processes that write the
    same one do not meet. Raises OSError that names `path`, not the file beside it."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        _forget(temporary)
        if error.filename is None or str(error.filename) == str(temporary):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        raise
    except BaseException:
        _forget(temporary)
        raise


def _forget(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink()
