"""The quantity grammar, example by example, and what its errors say."""

from fractions import Fraction

import pytest

from ledger import units
from ledger.errors import InvalidArgument


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("0", 0),
        ("1", 1000),
        ("1.5", 1500),
        (".25", 250),
        ("0.001", 1),
        ("500m", 500),
        ("500 m", 500),
        ("1.0m", 1),
        (" 2 ", 2000),
        ("007", 7000),
        ("1000", 1_000_000),
        ("1000000m", 1_000_000),
    ],
)
def test_cpu_is_read(text: str, milli: int) -> None:
    assert units.parse_cpu_milli(text) == milli


@pytest.mark.parametrize(
    "text",
    [
        *"0.5m 1.5m 0.0001 1e3 1M 1. . -1 +1 m 1,5 1_000 0x1 1Mi nan inf 1000001m 1000.001".split(),
        *("1.2.3", "", " ", "1 5", "١", "１", "1\n", "1\tm", "1\nm", "9" * 65),
    ],
)
def test_cpu_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        units.parse_cpu_milli(text, "--request-cpu")
    assert caught.value.code == "invalid_argument"
    assert caught.value.message.startswith("--request-cpu: ")
    assert repr(text)[:60] in caught.value.message
    assert caught.value.hint == "for example 500m or 1.5"


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1024B", 1024),
        ("512MiB", 512 * 1024**2),
        ("512Mi", 512 * 1024**2),
        (" 512 mib ", 512 * 1024**2),
        ("1GB", 10**9),
        ("1gb", 10**9),
        ("1.5GB", 1_500_000_000),
        ("1.5GiB", 1_610_612_736),
        ("0.5KiB", 512),
        (".5KB", 500),
        ("2TiB", 2 * 1024**4),
        ("1TB", 10**12),
        ("9007199254740991", 2**53 - 1),
    ],
)
def test_bytes_are_read(text: str, amount: int) -> None:
    assert units.parse_bytes(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        *"1G 1M 1k 1PiB 1e9 0.1GiB 0.5B 1.5 1. -1GiB +1B MiB 1MiBB 9007199254740992 8PiB".split(),
        *("8192TiB", "", "1 024", "٣MiB", "1MiB\n", "1\nMiB", "1\u00a0KiB"),
    ],
)
def test_bytes_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        units.parse_bytes(text, "--limit-memory")
    assert caught.value.message.startswith("--limit-memory: ")
    assert caught.value.hint == "for example 512MiB"


@pytest.mark.parametrize(
    ("text", "ratio"),
    [
        ("1", Fraction(1)),
        ("1.1", Fraction(11, 10)),
        (".5", Fraction(1, 2)),
        ("2.50", Fraction(5, 2)),
    ],
)
def test_a_ratio_is_exact(text: str, ratio: Fraction) -> None:
    assert units.parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["", *"0 0.0 -1 +1 NaN nan inf Infinity 1e3 1/3 1. 1m".split()])
def test_a_ratio_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="ratio"):
        units.parse_ratio(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("90s", 90_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("2d", 172_800_000),
        ("0.001s", 1),
    ],
)
def test_a_duration_is_read(text: str, milliseconds: int) -> None:
    assert units.parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", *"10 s 1w 1M 0.5ms -1s 1h30 1e3s .5s 9999999999999d".split()])
def test_a_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="duration"):
        units.parse_duration_ms(text)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (units.format_cpu_milli(0), "0"),
        (units.format_cpu_milli(2000), "2"),
        (units.format_cpu_milli(1500), "1500m"),
        (units.format_bytes(0), "0B"),
        (units.format_bytes(1), "1B"),
        (units.format_bytes(1536), "1536B"),
        (units.format_bytes(512 * 1024**2), "512MiB"),
        (units.format_bytes(1024**4), "1TiB"),
        (units.format_duration_ms(0), "0s"),
        (units.format_duration_ms(5_400_500), "1h30m500ms"),
        (units.format_duration_ms(86_400_000), "1d"),
    ],
)
def test_values_are_written_short(made: str, text: str) -> None:
    assert made == text


def test_a_long_text_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidArgument) as caught:
        units.parse_bytes("9" * 10_000)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("amount", "down", "up"),
    [
        (0, "0B", "0B"),
        (1023, "1023B", "1023B"),
        (4 * 1024**3, "4GiB", "4GiB"),
        (1_982_258, "1.89MiB", "1.90MiB"),
        (1023 * 1024**2, "1023MiB", "1023MiB"),
        (24_012_688_589, "22.36GiB", "22.37GiB"),
        (4 * 1024**3 - 1, "3.99GiB", "4.00GiB"),
        (1024**4 + 1, "1.00TiB", "1.01TiB"),
    ],
)
def test_what_is_too_long_to_read_is_rounded(amount: int, down: str, up: str) -> None:
    assert units.format_short(amount, units.format_bytes) == down
    assert units.format_short(amount, units.format_bytes, up=True) == up


def test_only_bytes_are_rounded() -> None:
    assert units.format_short(10_000_000_001, str) == "10000000001"
