"""The leader's work. Knows no HTTP."""
