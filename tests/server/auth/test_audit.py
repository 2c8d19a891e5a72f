"""The audit line."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scalable_topics.model.names import TopicName
from scalable_topics.server.auth.audit import LOGGER_NAME, audit_record, write_audit
from scalable_topics.server.auth.authorizer import of_tenant, of_topic
from scalable_topics.server.auth.caller import daemon, role
from scalable_topics.server.auth.table import Action

TOPIC = of_topic(TopicName.parse("topic://t/n/orders"))


def test_who_what_from_where_and_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    caller = replace(role("alice", "10.0.0.7"), via="b1")
    record = audit_record(
        caller, Action.SPLIT, TOPIC, outcome="done", status=200, because="super-user", request_key="k-1", duration_ms=12
    )

    with caplog.at_level(logging.INFO, LOGGER_NAME):
        write_audit(record)

    [line] = caplog.messages
    assert line == (
        'audit who="alice" kind="role" action="split" subject="topic://t/n/orders" address="10.0.0.7" via="b1" '
        'outcome="done" status=200 because="super-user" requestKey="k-1" durationMs=12'
    )
    fields = caplog.records[0].__dict__["audit"]
    assert fields["who"] == "alice"
    assert fields["dryRun"] is False


def test_a_daemon_and_a_role_of_its_name_are_told_apart() -> None:
    records = [
        audit_record(caller, Action.SPLIT, TOPIC, outcome="done", duration_ms=0)
        for caller in (daemon("b1"), role("broker b1"))
    ]

    assert records[0].who == records[1].who
    assert records[0].kind != records[1].kind


@given(st.text(max_size=40), st.text(max_size=40))
def test_names_cannot_forge_a_line(who: str, key: str) -> None:
    record = audit_record(
        role(who), Action.CREATE_TENANT, of_tenant(who), outcome="done", request_key=key, duration_ms=0
    )
    lines: list[str] = []
    log = logging.getLogger(LOGGER_NAME)
    handler = Lines(lines)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        write_audit(record)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)

    [line] = lines
    assert line.isascii()
    assert line.isprintable()


class Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())
