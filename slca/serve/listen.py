"""Sockets that are bound before a model is loaded: a port in use is said at once, and nobody can take it meanwhile."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

BACKLOG = 2048  # connections that wait to be accepted
_ELSEWHERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # an address family that this machine has not


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets, one for each address of `host` ("" = all of this machine). Raises ValueError that names the flag at fault."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"--host={host}: no address of this machine ({reason})") from None
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, address in dict.fromkeys((one[0], one[4]) for one in found):
        try:
            sockets.append(_bound(family, address[0], port or _port(sockets), address[2:]))
        except OSError as error:
            if error.errno in _ELSEWHERE:
                missing = error
                continue
            for one in sockets:
                one.close()
            raise ValueError(_said(host, port, error)) from None
    if not sockets:
        raise ValueError(f"--host={host}: no address of this machine ({missing.strerror if missing else 'none found'})")
    return sockets


def _port(sockets: Sequence[socket.socket]) -> int:
    """The port of the sockets there are; 0 = any."""
    return int(sockets[0].getsockname()[1]) if sockets else 0


def _bound(family: int, host: str | int, port: int, rest: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port, *rest))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def _said(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"--port={port}: another program listens there on {host or 'this machine'}; choose another port (0 = any free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"--port={port}: not permitted to this user on {host or 'this machine'}; choose one above 1023"
    return f"--host={host} --port={port}: cannot listen there ({error.strerror})"
