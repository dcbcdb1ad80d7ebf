"""The command: what it refuses before anything is loaded, and one server over loopback."""

import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra: serve)")
pytest.importorskip("fastapi", reason="fastapi is not installed (extra: serve)")

from slca.serve.__main__ import main
from slca.serve.http import is_loopback


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host=0.0.0.0"], "SLCA_SERVE_KEY"), (["--host=::"], "key"), (["--host="], "key"), (["--host=10.0.0.1", "--key-env=NONE"], "NONE"),
        (["--slots=0"], "--slots"), (["--timeout=-1"], "--timeout"), (["--queue=-1"], "--queue"), ([], "no such folder"),
        (["--port=99999"], "--port=99999"),
        (["--port=-5"], "--port=-5"),
        (["--timeout=nan"], "--timeout=nan"),
    ],
)  # fmt: skip
def test_refusals(arguments, said, capsys, monkeypatch, tmp_path):
    monkeypatch.delenv("SLCA_SERVE_KEY", raising=False)
    assert main([f"--checkpoint={tmp_path / 'nowhere'}", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_blank_key_is_no_key(monkeypatch, capsys):
    monkeypatch.setenv("SLCA_SERVE_KEY", "  ")
    assert main(["--checkpoint=x", "--host=0.0.0.0"]) == 2


def test_help_and_unknown_flags(capsys):
    for arguments in (["--help"], ["--checkpoint=x", "--nonsense"], []):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == (0 if arguments == ["--help"] else 2)
    assert "Exit codes" in capsys.readouterr().out


def test_loopback_names():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org")))
