"""The command: what it refuses before anything is loaded, and one server over loopback."""

import threading

import pytest

pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra: serve)")
pytest.importorskip("fastapi", reason="fastapi is not installed (extra: serve)")

from slca.serve.__main__ import arguments, main, run
from slca.serve.http import is_loopback
from slca.serve.listen import listen
from tests.serve.engines import Told, make_app


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
    for flags in (["--help"], ["--checkpoint=x", "--nonsense"], []):
        with pytest.raises(SystemExit) as end:
            main(flags)
        assert end.value.code == (0 if flags == ["--help"] else 2)
    assert "Exit codes" in capsys.readouterr().out


def test_a_server_ends_with_its_engine(monkeypatch, capsys):
    monkeypatch.setattr("uvicorn.Config.configure_logging", lambda self: None)  # it would keep the stream that pytest lends it
    engine = Told("ok")
    options = arguments().parse_args(["--checkpoint=x", "--port=0"])
    threading.Timer(0.5, setattr, (engine, "reason", "failed: XlaRuntimeError")).start()
    assert run(make_app(engine), engine, options, listen("127.0.0.1", 0)) == 1
    assert "serving slca at http://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_in_use_is_said_before_a_model_is_loaded(monkeypatch, capsys, host):
    monkeypatch.setattr("slca.serve.__main__.build", lambda *_: pytest.fail("the model was loaded"))
    (taken,) = listen("127.0.0.1", 0)
    with taken:
        port = taken.getsockname()[1]
        assert main(["--checkpoint=x", f"--host={host}", f"--port={port}"]) == 2
    captured = capsys.readouterr()
    assert f"slca.serve: --port={port}: another program listens there" in captured.err
    assert captured.err.count("\n") == 1 and not captured.out


def test_an_address_of_another_machine(monkeypatch, capsys):
    monkeypatch.setenv("SLCA_SERVE_KEY", "k")
    for host in ("203.0.113.7", "a..b"):
        assert main(["--checkpoint=x", f"--host={host}", "--port=0"]) == 2
        assert f"--host={host}: no address of this machine" in capsys.readouterr().err


def test_every_address_of_a_name_gets_the_same_port():
    sockets = listen("localhost", 0)
    assert len({one.getsockname()[1] for one in sockets}) == 1
    for one in sockets:
        one.close()


def test_loopback_names():
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org")))
