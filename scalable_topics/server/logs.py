"""What the daemon writes to standard error: one line per event, as text for people or as JSON for what collects logs.

Our lines say `topic=%s operation=%s term=%d` in their text; the fields are taken from there, so nothing has to be said
twice. Only what the program's own template names becomes a field: a topic whose name holds ` operation=x` or a line
break makes neither a field nor a line. Tokens are taken out of everything, whoever logged it.
"""

import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, TextIO

import msgspec

from scalable_topics.server.auth.redaction import redact
from scalable_topics.server.configuration import LogFormat

FIXED: Final = ("time", "level", "logger", "message", "exception")
"""In every line of JSON, in this order, the last one only where there is one. No field has such a name."""

_PLACEHOLDER: Final = re.compile(
    r"(?:(?<![\w.])(?P<name>[A-Za-z_]\w*)=)?"
    r"%(?P<mapped>\(\w*\))?[#0\- +]*(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?[hlL]?(?P<kind>[A-Za-z%])"
)
_UNSAFE: Final = re.compile("[\x00-\x1f\x7f\x80-\x9f\u2028\u2029\ud800-\udfff]")
"""Ends a line somewhere, moves a terminal's cursor, or cannot be written as UTF-8."""
_OF_EVERY_RECORD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What a line says by name: `key=%s` of its template, then what came as `extra`."""
    fields = dict(_named_arguments(record))
    fields |= {name: value for name, value in record.__dict__.items() if name not in _OF_EVERY_RECORD}
    return {name: value for name, value in fields.items() if name not in FIXED}


class TextFormatter(logging.Formatter):
    """`time level logger message`, then what came as `extra` and fits into a line. What has several lines, such as a
    traceback, follows indented, so that only a line of ours begins with a time.
    """

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        below = []
        for name, value in _extra(record).items():
            if isinstance(value, str) and "\n" in value:
                below += value.splitlines()
            elif value is None or isinstance(value, str | int | float):
                message += f" {name}={value}"
        below += self._exception(record).splitlines()
        first = f"{_time_of(record)} {record.levelname} {record.name} {message}"
        return "\n    ".join(_safe(line) for line in (first, *below))

    def _exception(self, record: logging.LogRecord) -> str:
        parts = [record.exc_text or (self.formatException(record.exc_info) if record.exc_info else "")]
        return "\n".join([*parts, record.stack_info or ""]).strip("\n")


class JsonFormatter(TextFormatter):
    """One JSON object per line: `FIXED`, and the fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if exception := self._exception(record):
            line["exception"] = exception
        return msgspec.json.encode(_writable(line)).decode()


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, to be known again."""


def configure_logs(level: str | int, style: LogFormat, *, stream: TextIO | None = None) -> logging.Handler:
    """Make the root logger write like this; answers its handler. May be called again, as on SIGHUP: lines are neither
    lost nor doubled. Handlers of others stay.
    """
    handler = _Handler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    before = [one for one in root.handlers if isinstance(one, _Handler)]
    root.addHandler(handler)
    for one in before:
        root.removeHandler(one)
    root.setLevel(level)
    return handler


def _named_arguments(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Each `key=%s`, with its argument as it was given: a number stays one."""
    arguments = record.args
    if not isinstance(arguments, tuple) or not isinstance(record.msg, str):
        return
    position = 0
    for found in _PLACEHOLDER.finditer(record.msg):
        if found["kind"] == "%" or found["mapped"]:
            continue
        position += (found["width"] == "*") + (found["precision"] == "*")
        if position >= len(arguments):
            return
        if found["name"]:
            yield found["name"], arguments[position]
        position += 1


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _OF_EVERY_RECORD}


def _time_of(record: logging.LogRecord) -> str:
    """UTC, whatever the machine's time zone."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{whole}.{int(record.msecs):03d}Z"


def _safe(line: str) -> str:
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), redact(line))


def _writable(value: Any) -> object:
    """The same as JSON can hold it, without tokens. What is no plain value is told as text."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)
    if isinstance(value, Mapping):
        return {str(_writable(str(name))): _writable(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_writable(each) for each in value]
    return redact(str(value)).encode("utf-8", "backslashreplace").decode()
