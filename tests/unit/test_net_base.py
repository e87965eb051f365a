"""Addresses, targets and errors as they travel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.errors import DeadlineExceeded, LiquidError, Malformed, Unavailable
from subnet.net.base import (
    MAX_TEXT_CHARS,
    Response,
    check_url,
    opened,
    refuse,
    relay_url,
    relayed_hotkey,
    split_target,
    target_of,
)
from subnet.types import Hotkey


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=5))
def test_a_query_survives_its_target(query: dict[str, str]) -> None:
    try:
        target = target_of("/v1/shards", query)
    except UnicodeEncodeError:  # lone surrogates are no text
        return
    assert split_target(target) == ("/v1/shards", query)


HOTKEY = "5DAHxvWFzqVX1Kh4gNFsdeBUwZu8CrDF5xiMtnRHk2BnZAZx"


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.1:8091", "https://peer.example", "http://[::1]:80/", f"http://10.0.0.1:8091/relay/{HOTKEY}"],
)
def test_origins_are_addresses(url: str) -> None:
    assert check_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://a/relay",
        f"http://a/relay/{HOTKEY}/v1",
        f"http://a/relay/{HOTKEY}?x",
        f"http://a/relay/{HOTKEY[:-4]}0OIl",
        f"http://a/relays/{HOTKEY}",
        "",
        "10.0.0.1:80",
        "file:///etc/passwd",
        "http://",
        "http://a/b",
        "http://u@a",
        "http://a?x",
        "http://a:99999",
    ],
)
def test_anything_else_is_not(url: str) -> None:
    with pytest.raises(Malformed):
        check_url(url)


def test_an_address_behind_a_relay_names_who_is_meant() -> None:
    assert relayed_hotkey(relay_url("http://a:1/relay", Hotkey(HOTKEY))) == HOTKEY
    assert relayed_hotkey("http://a:1") is None


def test_an_error_survives_its_travel() -> None:
    with pytest.raises(DeadlineExceeded) as caught:
        opened(refuse(DeadlineExceeded("Too slow.", remedy="Wait.")))
    assert (caught.value.message, caught.value.advice) == ("Too slow.", "Wait.")


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"7", b'{"code": 3}', b"[" * 100_000])
def test_an_answer_that_is_no_error_of_ours(body: bytes) -> None:
    with pytest.raises(LiquidError, match="418"):
        opened(Response(418, body))
    with pytest.raises(Unavailable):
        opened(Response(503, body))


def test_the_other_sides_text_is_cut_and_cleaned() -> None:
    with pytest.raises(Malformed) as caught:
        opened(Response(422, b'{"code": "malformed", "message": "\\u001b[2J\\n' + b"x" * 1000 + b'"}'))
    assert caught.value.message == "[2J" + "x" * (MAX_TEXT_CHARS - 5)
