"""What is read of a request without a parser's help is what the parser would say."""

from __future__ import annotations

import httptools
from hypothesis import example, given
from hypothesis import strategies as st

from axern.api.messages import Headers, Response, head_of
from axern.api.protocol import _PLAIN_TARGET


@given(st.lists(st.text("abcXYZ019._-/%?#:@ ", max_size=8), max_size=4).map("/".join))
@example("//host/path")
@example("/v2/reservations/0123")
@example("/..")
def test_a_plain_target_is_its_own_path(text: str) -> None:
    target = text.encode()
    if _PLAIN_TARGET.fullmatch(target):
        found = httptools.parse_url(target)
        assert found.path == target
        assert [found.query, found.fragment, found.host] == [None] * 3
        assert "%" not in text


def test_control_what_is_not_plain_is_parsed() -> None:
    for target in (b"/", b"/a?b", b"/a%20", b"/a#b", b"//a", b"/a/", b"a", b"/a\n", b""):
        assert not _PLAIN_TARGET.fullmatch(target)
    assert _PLAIN_TARGET.fullmatch(b"/v2/reservations")


def test_headers_are_a_mapping_by_name_and_the_last_one_counts() -> None:
    headers = Headers([(b"accept", b"a"), (b"x", b"\xe9"), (b"accept", b"b")])
    assert dict(headers) == {"accept": "b", "x": "é"}
    assert (len(headers), headers.get("y", ""), headers["accept"]) == (2, "", "b")


def test_a_head_has_its_lines_in_order() -> None:
    response = Response(503, b"1234", "application/problem+json", (("retry-after", "1"),))
    assert head_of(response, "ab", last=True) == (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\n"
        b"content-length: 4\r\nx-request-id: ab\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
    )
    assert head_of(Response(200, b""), "", last=False) == (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\r\n"
    )
