"""The configuration file: every mistake is refused by name, and only its owner may change it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern import config
from axern.daemon.main import EXIT_CONFIG, _guarded
from axern.runtime.configured import layout_of
from axern.settings import Settings
from ledger.errors import InvalidArgument


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "axern.toml"


def write(path: Path, text: str, mode: int = 0o644) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


def test_an_empty_file_is_all_defaults(path: Path) -> None:
    settings = config.load(write(path, ""))
    assert settings == Settings.model_validate({})
    assert settings.socket_path == "/run/axern/axernd.sock"
    assert settings.ledger_dir == "/var/lib/axern/ledger"


def test_quantities_are_texts_with_a_unit(path: Path) -> None:
    text = """
        default_request_cpu = "1.5"
        default_request_memory = "1GiB"
        system_reserve_memory = "0B"
        stop_grace = "1m30s"
        cpu_overcommit_ratio = "1.25"
        """
    settings = config.load(write(path, text))
    assert settings.default_request_cpu_milli == 1_500
    assert settings.default_request_memory_bytes == 1024**3
    assert settings.system_reserve_memory_bytes == 0
    assert settings.stop_grace_ms == 90_000
    assert settings.cpu_overcommit_ratio == "1.25"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stop_grace", "10"),
        ("stop_grace", '"10"'),
        ("stop_grace", '"-1s"'),
        ("tick", "true"),
        ("default_request_memory", "4096"),
        ("default_request_memory", '"1G"'),
        ("default_request_cpu", '"0.5m"'),
        ("default_request_cpu", '"0"'),
        ("default_request_memory", '"0B"'),
        ("default_limit_ephemeral_storage", '"1023KiB"'),
        ("io_read_max", '"0B"'),
        ("io_write_max", '"0B"'),
        ("pids_max", "4000001"),
        ("cpu_overcommit_ratio", '"0"'),
        ("cpu_overcommit_ratio", "1.5"),
        ("cpu_overcommit_ratio", '"nan"'),
        ("max_sandboxes", "0"),
        ("max_sandboxes", "4096"),
        ("max_sandboxes", "1.5"),
        ("entry_cap", "-1"),
        ("launch_workers", "65"),
        ("cgroup_enforcement", '"disabled"'),
        ("default_runtime", '"kata"'),
        ("state_dir", '"relative"'),
        ("run_dir", '""'),
        ("socket", "1"),
    ],
)
def test_a_bad_value_is_refused_by_name(path: Path, key: str, value: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"axern\.toml: {key}: ") as caught:
        config.load(write(path, f"{key} = {value}\n"))
    assert caught.value.hint


@pytest.mark.parametrize("key", ["colour", "stop_grace_ms", "State_dir", "table.key", "default"])
def test_an_unknown_key_is_named(path: Path, key: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"axern\.toml: {key.partition('.')[0]}: Extra"):
        config.load(write(path, f'{key} = "1s"\n'))


@pytest.mark.parametrize("text", ["x", "a = ", "a = 1\na = 2", "[a\n", '"\\ud800" = 1', "\x00"])
def test_what_is_not_toml_is_refused(path: Path, text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"axern\.toml: "):
        config.load(write(path, text))


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.write_bytes(b'state_dir = "\xff"')
    with pytest.raises(InvalidArgument, match=r"axern\.toml: "):
        config.load(str(path))


def test_a_named_file_must_exist_and_the_default_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = str(tmp_path / "missing")
    for read in (config.load, config.locate):
        with pytest.raises(InvalidArgument, match="there is no configuration file"):
            read(missing)
    monkeypatch.setattr(config, "DEFAULT_PATH", missing)
    assert config.load() == Settings.model_validate({})
    assert config.locate().socket == Settings.model_validate({}).socket_path


@pytest.mark.parametrize("name", [".", "axern.toml/below"])
def test_what_cannot_be_read_is_refused(path: Path, name: str) -> None:
    write(path, "")
    for read in (config.load, config.locate):
        with pytest.raises(InvalidArgument):
            read(str(path.parent / name))


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o622])
def test_a_file_that_others_may_change_is_refused(path: Path, mode: int) -> None:
    with pytest.raises(InvalidArgument, match="may be changed by others than root") as caught:
        config.load(write(path, "", mode))
    assert caught.value.hint == f"chown root {path} && chmod go-w {path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_refused(path: Path) -> None:
    write(path, "")
    os.chown(path, 1000, 1000)
    with pytest.raises(InvalidArgument, match="owner 1000"):
        config.load(str(path))


def test_both_readers_find_the_same_places(path: Path) -> None:
    for text in ('run_dir = "/x"\nstate_dir = "/y"\n', 'socket = "/z/s"\n', ""):
        settings, places = config.load(write(path, text)), config.locate(str(path))
        assert places.socket == settings.socket_path
        assert places.ledger_dir == settings.ledger_dir


@pytest.mark.parametrize("folder", ["/a b", "/a,b", "/a:b", "/a\\\\b"])
def test_a_folder_that_cannot_be_mounted_is_a_mistake_in_the_configuration(
    path: Path, folder: str
) -> None:
    settings = config.load(write(path, f'state_dir = "{folder}"\n'))
    with pytest.raises(InvalidArgument, match="state_dir, run_dir or filestore"):
        layout_of(settings)


@pytest.mark.parametrize("text", ["colour = 1", "x", 'state_dir = "/a b"'])
def test_the_daemon_leaves_with_the_code_for_a_bad_configuration(path: Path, text: str) -> None:
    assert _guarded(write(path, text), bury_unknown=False) == EXIT_CONFIG


LINES = st.one_of(
    st.sampled_from(
        ['a = "x"', "a = 1", " b=true # why", "# no", "", "b = 'x'", "[a]", 'a = "\\t"', "a.b = 1"]
    ),
    st.from_regex(
        r'[ab] ?= ?("[^"]{0,4}"|[0-9_+-]{1,4}|true|"""|[a-z]{3})[ ]{0,2}(#.{0,3})?', fullmatch=True
    ),
    st.text(max_size=8),
)


@given(st.lists(LINES, max_size=5).map("\n".join))
def test_the_quick_reader_reads_as_tomllib_does(text: str) -> None:
    try:
        expected: object = tomllib.loads(text)
    except ValueError as error:
        expected = str(error)
    try:
        read: object = config._parse_plain(text)
    except ValueError as error:
        read = str(error)
    assert read == expected


def test_bounds_on_exposure_are_exact(path: Path) -> None:
    text = 'max_exposure_memory = "1.5"\nmax_exposure_ephemeral_storage = ".3"\n'
    settings = config.load(write(path, text))
    assert settings.max_exposure == (("memory_bytes", 3, 2), ("ephemeral_storage_bytes", 3, 10))
    assert Settings.model_validate({}).max_exposure == ()
    for wrong in ('"0"', '"-1"', '"2e3"', "2"):
        with pytest.raises(InvalidArgument, match="max_exposure_cpu"):
            config.load(write(path, f"max_exposure_cpu = {wrong}\n"))
