"""Kinds of errors and their statuses."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import scalable_topics
from scalable_topics.control.service import NotLeading
from scalable_topics.model.errors import (
    CapReached,
    DecodeError,
    InvalidArgument,
    NotFound,
    ScalableTopicsError,
    Unavailable,
    WrongState,
)
from scalable_topics.segments.errors import Terminated
from scalable_topics.server.errors import STATUS, status_of


def kinds(of: type[ScalableTopicsError] = ScalableTopicsError) -> Iterator[str]:
    if of.__module__.startswith("scalable_topics."):
        yield of.kind
    for each in of.__subclasses__():
        yield from kinds(each)


def test_every_kind_has_a_status_and_every_status_a_kind() -> None:
    for module in pkgutil.walk_packages(scalable_topics.__path__, "scalable_topics."):
        if not module.name.endswith("__main__") and not module.name.startswith("scalable_topics.spark"):
            importlib.import_module(module.name)
    assert set(kinds()) == STATUS.keys()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("x"), 404),
        (WrongState("x"), 409),
        (Terminated("x"), 409),
        (InvalidArgument("x"), 412),
        (CapReached("x"), 412),
        (Unavailable("x"), 503),
        (NotLeading("x"), 503),
        (DecodeError("x"), 500),
    ],
)
def test_statuses_as_the_design_has_them(error: ScalableTopicsError, status: int) -> None:
    assert status_of(error) == status
