"""What an operator tells a daemon: read from a file, the environment and flags, checked as a whole, written down.

`settings` declares every key once; everything else here (names of variables and flags, the reference, the checks) comes
from there. This is no place for what the daemon does with it: a `Configuration` is a value, and `reloaded` makes the
next one.
"""

from scalable_topics.server.configuration.changes import Change, Changes, changed, reloaded
from scalable_topics.server.configuration.contradictions import advice
from scalable_topics.server.configuration.key import Key
from scalable_topics.server.configuration.loading import (
    FILE_VARIABLE,
    InvalidConfiguration,
    Loaded,
    Problem,
    load,
    load_with_origins,
)
from scalable_topics.server.configuration.registry import KEYS, SPELLINGS, Declared
from scalable_topics.server.configuration.secret import Secret
from scalable_topics.server.configuration.settings import Configuration, LogFormat, LogLevel
from scalable_topics.server.configuration.written import as_markdown, as_toml, shown

__all__ = [
    "FILE_VARIABLE",
    "KEYS",
    "SPELLINGS",
    "Change",
    "Changes",
    "Configuration",
    "Declared",
    "InvalidConfiguration",
    "Key",
    "Loaded",
    "LogFormat",
    "LogLevel",
    "Problem",
    "Secret",
    "advice",
    "as_markdown",
    "as_toml",
    "changed",
    "load",
    "load_with_origins",
    "reloaded",
    "shown",
]
