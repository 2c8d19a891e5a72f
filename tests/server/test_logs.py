"""Lines of the log, as people and as collectors read them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from scalable_topics.model.names import TopicName
from scalable_topics.server.auth.audit import audit_record, write_audit
from scalable_topics.server.auth.authorizer import CLUSTER
from scalable_topics.server.auth.caller import role
from scalable_topics.server.auth.table import Action
from scalable_topics.server.configuration import LogFormat
from scalable_topics.server.logs import FIXED, JsonFormatter, TextFormatter, configure_logs, fields_of
from tests.server.auth.makers import hs256

TOPIC = TopicName.parse("topic://t/n/orders")
TOKEN = hs256({"sub": "alice"})
EVIL = "orders operation=forged\n2026-01-01T00:00:00.000Z ERROR root gone\x1b[2J\u2028x\ud800"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def record(message: str, *arguments: object, **more: object) -> logging.LogRecord:
    made = logging.getLogger("scalable_topics.x").makeRecord(
        "scalable_topics.x", logging.INFO, __file__, 1, message, arguments, None, extra=dict(more)
    )
    made.created, made.msecs = 1_790_000_000.25, 250.0
    return made


def as_json(of: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(of)
    assert "\n" not in line
    read: dict[str, object] = json.loads(line)
    return read


def test_fields_come_from_the_template_and_numbers_stay_numbers() -> None:
    line = record("%s %s topic=%s operation=%s term=%d: %s", "SPLIT", "DONE", TOPIC, "0f", 7, "because x=1")
    assert as_json(line) == {
        "time": "2026-09-21T14:13:20.250Z",
        "level": "INFO",
        "logger": "scalable_topics.x",
        "message": "SPLIT DONE topic=topic://t/n/orders operation=0f term=7: because x=1",
        "topic": "topic://t/n/orders",
        "operation": "0f",
        "term": 7,
    }
    assert TextFormatter().format(line) == (
        "2026-09-21T14:13:20.250Z INFO scalable_topics.x"
        " SPLIT DONE topic=topic://t/n/orders operation=0f term=7: because x=1"
    )


@pytest.mark.parametrize(
    ("template", "arguments", "fields"),
    [
        ("100%% of topic=%s", ("a",), {"topic": "a"}),
        ("%.*f task=%r", (2, 1.0, "b c"), {"task": "b c"}),
        ("%-5s used_bytes=%10d quota_bytes=%s", ("x", 5, None), {"used_bytes": 5, "quota_bytes": None}),
        ("a.b=%s c=%s", ("x", "y"), {"c": "y"}),
        ("topic=spelled out", (), {}),
        ("time=%s message=%s level=%s", ("x", "y", "z"), {}),
        ("topic=%(topic)s", ({"topic": "a"},), {}),
        ("topic=%s term=%s", ("only one",), {"topic": "only one"}),
    ],
)
def test_templates(template: str, arguments: tuple[object, ...], fields: dict[str, object]) -> None:
    assert fields_of(record(template, *arguments)) == fields


def test_extra_is_told_in_both_forms() -> None:
    line = record("done", operation="0f", term=3, audit={"who": "alice"})
    assert as_json(line)["audit"] == {"who": "alice"}
    assert TextFormatter().format(line).endswith(" done operation=0f term=3")


def test_a_hostile_name_makes_neither_a_field_nor_a_line() -> None:
    line = record("leading topic=%s term=%d", EVIL, 3)
    read = as_json(line)
    assert read.keys() == {*FIXED, "topic", "term"} - {"exception"}
    assert str(read["topic"]).startswith("orders operation=forged\n")
    text = TextFormatter().format(line)
    assert "\n" not in text
    assert "\x1b" not in text
    text.encode()


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_token_is_written_wherever_it_comes_from(formatter: logging.Formatter) -> None:
    line = record("authorization=%s", f"Bearer {TOKEN}", header=f'"Bearer {TOKEN}"', nested={"deep": [TOKEN]})
    line.exc_info = (ValueError, ValueError(TOKEN), None)
    told = formatter.format(line)
    assert "ValueError" in told
    assert TOKEN.split(".")[1] not in told
    assert "***" in told


def test_a_traceback_is_below_in_text_and_a_field_in_json() -> None:
    line = record("it failed")
    line.exc_info = (ValueError, ValueError("line one\n2026-01-01T00:00:00.000Z ERROR forged"), None)
    first, *below = TextFormatter().format(line).split("\n")
    assert first.endswith("it failed")
    assert below
    assert all(one.startswith("    ") for one in below)
    assert "line one" in str(as_json(line)["exception"])


def test_what_has_several_lines_is_below() -> None:
    line = record("standing still", stacks="thread a\n  in b")
    assert TextFormatter().format(line).endswith("standing still\n    thread a\n      in b")
    assert as_json(line)["stacks"] == "thread a\n  in b"


def test_numbers_and_objects_that_json_cannot_hold() -> None:
    read = as_json(record("n=%s k=%s", 1 << 70, {TOPIC: {1}}))
    assert read["n"] == str(1 << 70)
    assert read["k"] == {str(TOPIC): [1]}


def test_an_audit_line_is_a_mapping_in_json(root: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logs("INFO", LogFormat.JSON, stream=stream)
    caller = role("alice", "10.0.0.7")
    write_audit(audit_record(caller, Action.LIST_BROKERS, CLUSTER, outcome="done", duration_ms=1))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["audit"]["action"] == "list-brokers"
    assert root.level == logging.INFO


def test_configured_again_lines_are_neither_lost_nor_doubled(root: logging.Logger) -> None:
    stream, others = io.StringIO(), len(root.handlers)
    for style in (LogFormat.JSON, LogFormat.TEXT):
        configure_logs("WARNING", style, stream=stream)
    logging.getLogger("scalable_topics.x").warning("once topic=%s", TOPIC)
    logging.getLogger("scalable_topics.x").info("below the level")
    assert stream.getvalue().count("\n") == 1
    assert " WARNING scalable_topics.x once topic=topic://t/n/orders\n" in stream.getvalue()
    assert len(root.handlers) == others + 1
