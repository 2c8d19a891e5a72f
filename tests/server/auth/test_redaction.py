"""What stays of a text that holds a token."""

import pytest

from scalable_topics.server.auth.redaction import redact
from tests.server.auth.makers import hs256

TOKEN = hs256({"sub": "alice"})


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"Authorization: Bearer {TOKEN}", "Authorization: Bearer ***"),
        (f"b'authorization: bearer {TOKEN}\\x01' and more", "b'authorization: bearer ***' and more"),
        (f"token {TOKEN}, and {TOKEN[:30]}", "token ***, and ***"),
        ("Bearer opaque", "Bearer ***"),
        ("aiohttp.http_exceptions.BadHttpMessage: 400", "aiohttp.http_exceptions.BadHttpMessage: 400"),
        ("topic://t/n/orders", "topic://t/n/orders"),
    ],
)
def test_tokens_go_and_the_rest_stays(text: str, left: str) -> None:
    assert redact(text) == left
