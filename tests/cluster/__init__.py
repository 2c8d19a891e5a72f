"""Several daemons, each a process, on a real etcd and one data directory; and faults between them.

`harness` starts and breaks them, `traffic` writes and reads through them, `whole` says whether what is left is whole,
`matrix` runs every operation at every failpoint under every fault.
"""
