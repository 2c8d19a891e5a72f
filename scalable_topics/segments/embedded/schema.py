"""What a shard file holds, in which version, and what its troubles mean to people."""

import sqlite3
from pathlib import Path
from typing import Final

from scalable_topics.model.errors import MustStop, NoSpace, ScalableTopicsError, Unavailable
from scalable_topics.segments.errors import Damaged
from scalable_topics.segments.log import MAX_ENTRIES

VERSION: Final = 1
APPLICATION_ID: Final = 0x53544F50
"""Marks a file as ours in its header."""
BUSY_SECONDS: Final = 5
"""How long one process waits for the others' transactions, which take milliseconds."""

ENTRY_BITS: Final = MAX_ENTRIES.bit_length() - 1
"""A message's row id is its segment's id and its entry in one number, so a segment lies together and in order. A
segment has room for 2^32 messages, a shard for 2^31 segments in all its life.
"""

_TABLES: Final = """
CREATE TABLE place (shard INTEGER NOT NULL, shards INTEGER NOT NULL);
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    incarnation TEXT, segment_id INTEGER, operation_id TEXT,
    term INTEGER NOT NULL, owner_term INTEGER NOT NULL,
    first_entry INTEGER NOT NULL, next_entry INTEGER NOT NULL, stored_bytes INTEGER NOT NULL,
    terminated INTEGER NOT NULL, writer TEXT,
    created_at_ms INTEGER NOT NULL, last_published_ms INTEGER NOT NULL, deleted_at_ms INTEGER
);
CREATE TABLE cursors (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    segment INTEGER NOT NULL, name TEXT NOT NULL,
    mark_delete INTEGER NOT NULL, acked INTEGER NOT NULL, moves INTEGER NOT NULL,
    obeyed BLOB NOT NULL, held BLOB NOT NULL,
    UNIQUE (segment, name)
);
CREATE TABLE acked (cursor INTEGER NOT NULL, entry INTEGER NOT NULL, PRIMARY KEY (cursor, entry)) WITHOUT ROWID;
CREATE TABLE producers (
    segment INTEGER NOT NULL, name TEXT NOT NULL, last_sequence INTEGER NOT NULL, last_entry INTEGER NOT NULL,
    PRIMARY KEY (segment, name)
) WITHOUT ROWID;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    published_at_ms INTEGER NOT NULL, producer TEXT NOT NULL, sequence INTEGER, size INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE partitioned (name TEXT PRIMARY KEY, partitions INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE news (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);
"""


def connect(path: Path) -> sqlite3.Connection:
    """A connection for one thread at a time. Every commit on it is on the disk when it returns."""
    connection = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path, *, shard: int, shards: int) -> None:
    """Make a new file ours, or see that an old one is. `MustStop` and `Damaged` say what is wrong with it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not tables:
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            connection.execute("INSERT INTO place VALUES (?, ?)", (shard, shards))
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif application != APPLICATION_ID:
            raise MustStop("the file belongs to another program", subject=str(path), remedy="use an empty directory")
        elif version > VERSION:
            raise MustStop(
                f"the file has format {version}, and this version understands up to {VERSION}",
                subject=str(path),
                remedy="start the newer version again: formats are not turned back",
            )
        elif (found := connection.execute("SELECT shard, shards FROM place").fetchone()) != (shard, shards):
            raise MustStop(
                f"it is shard {found[0]} of {found[1]}, not {shard} of {shards}",
                subject=str(path),
                remedy="keep the number of shards that the directory was made with, and do not rename its files",
            )
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def translate(error: sqlite3.Error, path: Path) -> ScalableTopicsError | None:
    """What an error of SQLite's means: nothing was changed. None = it is a defect of ours."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    subject = str(path)
    match code:
        case sqlite3.SQLITE_FULL:
            return NoSpace("the disk is full", subject=subject, remedy="make room; nothing needs to be restarted")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return Damaged(
                f"the file is damaged: {error}",
                subject=subject,
                remedy="stop the daemons, copy it away, and restore it from a backup or with the `.recover` of sqlite3",
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            holder = _lock_holder(path)
            who = f"process {holder}" if holder else "another process"
            return Unavailable(
                f"{who} has been in a transaction for {BUSY_SECONDS} s",
                subject=subject,
                remedy="if that process is stopped, continue or kill it",
            )
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return Unavailable(
                f"the file cannot be used: {error}", subject=subject, remedy="look at the disk and the permissions"
            )
    return None


def _lock_holder(path: Path) -> int | None:
    """The process that holds the write lock of a file in WAL mode, where the system tells."""
    try:
        inode = path.with_name(f"{path.name}-shm").stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if fields[3] == "WRITE" and fields[5].endswith(f":{inode}") and fields[6] == _WRITE_LOCK_BYTE:
                return int(fields[4])
    except (OSError, IndexError, ValueError):
        return None
    return None


_WRITE_LOCK_BYTE: Final = "120"
"""Where in the -shm file SQLite locks for a writer (its WAL file format)."""
