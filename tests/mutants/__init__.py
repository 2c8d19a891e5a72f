"""Mutation testing: does any test notice when a line of `model/`, `policy/` or `metadata/` is wrong?

    python -m tests.mutants [--minutes 45] [--sample N] [--seed N] [--only metadata/session.py] [--at-least 95]

`changes` makes mutants: a module's text with one thing in it changed. `planted.toml` has more, by hand. `trials` runs
pytest on each, with the tests that come to the changed line. `__main__` says how many survived.
"""
