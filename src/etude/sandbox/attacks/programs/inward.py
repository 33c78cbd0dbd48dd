"""Programs that try to reach the host through the egress proxy of their box. They print BREACH for an HTTP answer of
status 2xx.

`python -c <this file> {} by_name <name> <port> <request>` sends the request to the address that the box's name server
gives for the name.
`python -c <this file> {} by_address <port> <address>...` sends a request directly to each address.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys


def _look_up(name: str) -> str:
    """Return the address that the box's name server gives for a name. The system's resolver is not used, because it
    finds localhost in /etc/hosts."""
    with open("/etc/resolv.conf") as file:
        server = next(line.split()[1] for line in file if line.startswith("nameserver") and ":" not in line)
    labels = b"".join(bytes([len(label)]) + label for label in name.encode().split(b"."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        query.settimeout(20)
        query.connect((server, 53))
        query.send(struct.pack("!HHHHHH", 5, 256, 1, 0, 0, 0) + labels + b"\0\0\1\0\1")
        return socket.inet_ntoa(query.recv(512)[-4:])


def _ask(address: str, port: str, request: str) -> str:
    """Send a request and return the first line of the answer. Prints BREACH if its HTTP status is 2xx."""
    with socket.create_connection((address, int(port)), 20) as connection:
        connection.sendall(request.encode())
        line = connection.makefile("rb").readline().decode("latin-1").strip()
    if line[9:10] == "2":
        print("BREACH", address, request.splitlines(), line)
    return line


def by_name(name: str, port: str, request: str) -> None:
    if not _ask(_look_up(name), port, request).startswith("HTTP/"):
        raise SystemExit("the proxy gave no answer")


def by_address(port: str, *addresses: str) -> None:
    for address in addresses:
        with contextlib.suppress(OSError):
            _ask(address, port, f"GET / HTTP/1.1\r\nHost: {address}\r\n\r\n")


def main(calls: str, name: str, *words: str) -> None:
    globals()[name](*words)
    print("DONE")


if __name__ == "__main__":
    main(*sys.argv[1:])
