"""Segments in SQLite files on one machine: durable without Pulsar.

`schema` says what a file holds, `sqlite_rows` reads and writes it for the rules, `shards` runs transactions on threads
of their own, and `directory` makes a `Backend` of a directory full of shards.
"""

from scalable_topics.segments.embedded.directory import open_segments

__all__ = ["open_segments"]
