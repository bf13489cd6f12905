"""What a request goes to: ids that a user typed, and paths with a query."""

from __future__ import annotations

from ledger.errors import InvalidArgument


def checked_id(text: str) -> str:
    """Return the id or prefix *text* in lower case.

    Raises:
        InvalidArgument: It is not 4 to 32 hexadecimal digits.
    """
    word = text.lower()
    if not 4 <= len(word) <= 32 or word.strip("0123456789abcdef"):  # noqa: PLR2004 - said below
        raise InvalidArgument(
            f"{text!r} is not an id: it must be 4 to 32 hexadecimal digits",
            hint="a unique beginning of an id will do",
        )
    return word


def query(path: str, **values: object) -> str:
    """Return *path* with the *values* that are not None as its query.

    Raises:
        InvalidArgument: One is no UTF-8.
    """
    given = {name: value for name, value in values.items() if value is not None}
    if not given:
        return path
    from urllib.parse import urlencode

    try:
        return f"{path}?{urlencode(given)}"
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{error.object!r} is not UTF-8 text", hint="every name and label is"
        ) from None
