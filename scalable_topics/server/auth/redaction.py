"""Tokens kept out of what others log.

Our own errors never hold any part of one. The HTTP server below us logs requests that it cannot read, headers and all,
before any of our code sees them.
"""

import logging
import re
from typing import Final

HIDDEN: Final = "***"
OTHERS: Final = ("aiohttp.server", "aiohttp.web", "aiohttp.internal", "asyncio")
"""Loggers that may tell of a request as it came."""

_TOKEN: Final = re.compile(r"(?i:\b(bearer)\s+)[^\s'\"]+|\beyJ[\w-]+(?:\.[\w-]*)*", re.ASCII)
"""What follows `Bearer`, and what begins as base64 of a JSON object does."""


def redact(text: str) -> str:
    """The same text without tokens."""
    return _TOKEN.sub(lambda match: f"{match[1]} {HIDDEN}" if match[1] else HIDDEN, text)


class RedactTokens(logging.Filter):
    """Takes tokens out of messages and tracebacks. For loggers, and better still for every handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if (redacted := redact(text)) != text:
            record.msg, record.args = redacted, ()
        if record.exc_info:
            trace = _formatter.formatException(record.exc_info)
            if (redacted := redact(trace)) != trace:
                record.exc_info, record.exc_text = None, redacted
        return True


_formatter: Final = logging.Formatter()
_redact_tokens: Final = RedactTokens()


def redact_others() -> None:
    """For the loggers of the HTTP server. To be called as often as one likes."""
    for name in OTHERS:
        logging.getLogger(name).addFilter(_redact_tokens)
