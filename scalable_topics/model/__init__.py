"""Pure values: what a topic, a segment, a layout, a record *is*.

Nothing here does I/O, reads a clock or draws a random number, and nothing here decides what ought to happen: that
is `policy/`. Every value is frozen and refuses to exist in a shape the specification calls invalid.
"""
