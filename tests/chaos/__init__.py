"""Faults on real processes: daemons, etcd members and the network between them, with a history that is checked
afterwards.

`daemon` is a real process that leads topics and writes for them; `network` stands between it and etcd; `driver`
breaks things; `history` says whether anything was ever wrong. `make chaos` runs it for long, `test_chaos.py` for a
few seconds.
"""
