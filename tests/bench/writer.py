"""Somebody else who writes: a process of its own on a bare connection, so that no cost of a write is the reader's.

A command is a line of JSON on stdin; its answer, once everything is written, is a line on stdout: when each write was
sent, by the clock that all processes of a machine share.
"""

import http.client
import subprocess
import sys
import time
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import Struct
from yarl import URL

KEYS: Final = 50


class Writes(Struct, frozen=True, kw_only=True):
    """So many writes to keys in turn under a prefix, one revision each; then one to `end`, without a value."""

    prefix: str
    value: bytes
    count: int
    end: str
    pause_seconds: float = 0.0
    """Before each write."""


_writes: Final = msgspec.json.Decoder(Writes)
_stamps: Final = msgspec.json.Decoder(list[int])


class Writer:
    """The process, from the side of whoever starts it."""

    def __init__(self, endpoint: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.writer", endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, writes: Writes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(writes) + b"\n")
        self._process.stdin.flush()

    def finish(self) -> list[int]:
        """When each was sent. Blocks, so that nothing is read from a watch meanwhile."""
        assert self._process.stdout is not None
        return _stamps.decode(self._process.stdout.readline())

    def write(self, writes: Writes) -> list[int]:
        self.begin(writes)
        return self.finish()


def main() -> int:
    url = URL(sys.argv[1])
    assert url.host is not None
    connection = http.client.HTTPConnection(url.host, url.port)
    for line in sys.stdin:
        stamps = [_put(connection, *each) for each in _each(_writes.decode(line))]
        print(msgspec.json.encode(stamps).decode(), flush=True)
    return 0


def _each(writes: Writes) -> list[tuple[bytes, float]]:
    """Bodies, encoded beforehand, and what to wait before each."""
    puts = [(f"{writes.prefix}{number % KEYS}", writes.value) for number in range(writes.count)]
    puts.append((writes.end, b""))
    return [(msgspec.json.encode({"key": key.encode(), "value": value}), writes.pause_seconds) for key, value in puts]


def _put(connection: http.client.HTTPConnection, body: bytes, pause_seconds: float) -> int:
    time.sleep(pause_seconds)
    sent_at = time.perf_counter_ns()
    connection.request("POST", "/v3/kv/put", body)
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(answer.decode())
    return sent_at


if __name__ == "__main__":
    sys.exit(main())
