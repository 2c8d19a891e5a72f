"""Mutation testing of the pure core: does any test notice when a line of `model/` or `policy/` is wrong?

    python -m tests.mutants [--minutes 40] [--sample N] [--seed N] [--only 'model.layout*'] [--at-least 90]

mutmut makes the mutants: a copy of the package in `mutants/`, in which every function is a switch between itself and
its mutants. It does not run them here. Its runner starts a whole pytest session per mutant and names the tests on its
command line, which costs seconds per mutant, and pytest cannot read all of our test names back. Instead there is one
session (`trials.py`): it collects the tests once, and forks a child per mutant that runs the tests which come to the
mutated statement, shortest first, until one fails.

Modules: `workspace` makes the copy, `sampling` says in which order the mutants come, `recording` learns where the tests
come, `trials` runs them in `children`, `verdicts` weighs the outcome against `equivalent.toml`, `report` writes it
down.
"""
