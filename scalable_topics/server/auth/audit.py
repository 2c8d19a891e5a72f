"""One line for every attempt at a change: who, what, to what, from where, and how it ended."""

import json
import logging
from typing import Final

import msgspec
from msgspec import Struct

from scalable_topics.server.auth.authorizer import Resource
from scalable_topics.server.auth.caller import Caller
from scalable_topics.server.auth.table import Action

LOGGER_NAME: Final = "scalable_topics.audit"

log = logging.getLogger(LOGGER_NAME)


class AuditRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an auditor reads. Holds nothing of a body, and of headers only the caller's own key of the request."""

    who: str
    kind: str
    """Of the caller: `role`, `daemon` or `anonymous`."""
    action: Action
    subject: str
    address: str | None
    """The client's, also when another daemon forwarded the request."""
    via: str | None
    """The broker that forwarded it."""
    outcome: str
    """`done`, the kind of the error it was refused with, or `unknown` when the caller left before the end."""
    status: int | None
    """Of the answer; None = there was none."""
    because: str | None
    """The right by which it was allowed."""
    dry_run: bool
    """The caller asked for a plan only."""
    request_key: str | None
    """The caller's Idempotency-Key."""
    duration_ms: int


def audit_record(
    caller: Caller,
    action: Action,
    resource: Resource,
    *,
    outcome: str,
    duration_ms: int,
    status: int | None = None,
    because: str | None = None,
    dry_run: bool = False,
    request_key: str | None = None,
) -> AuditRecord:
    return AuditRecord(
        who=str(caller),
        kind=caller.kind,
        action=action,
        subject=str(resource),
        address=caller.address,
        via=caller.via,
        outcome=outcome,
        status=status,
        because=because,
        dry_run=dry_run,
        request_key=request_key,
        duration_ms=duration_ms,
    )


def write_audit(record: AuditRecord) -> None:
    """One line of text, whatever the names hold; `record.audit` of the log record has the same as a mapping."""
    fields: dict[str, object] = msgspec.to_builtins(record)
    words = " ".join(f"{name}={json.dumps(value)}" for name, value in fields.items() if value not in (None, False))
    log.info("audit %s", words, extra={"audit": fields})
