"""Pure decisions: what ought to happen to a topic, and why.

Functions of their arguments only. The shell (`control/`) brings the time, the load and the layout, and carries out
the answer.
"""
