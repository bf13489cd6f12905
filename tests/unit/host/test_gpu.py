"""The inventory of GPUs: one class of tests for a library made here and for NVIDIA's own."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from axern.errors import CapabilityMissing, HostError
from axern.host import gpu
from axern.host.gpu import Device

GIB = 1024**3


class FakeError(Exception):
    """What the library raises."""


class FakeNvml:
    """NVML's functions over devices: uuid, name, bytes, minor, and MIG, None for one without it."""

    NVMLError = FakeError

    def __init__(self, *devices: tuple[str, str, int, int, bool | None]) -> None:
        self.devices = devices
        self.is_broken = False
        self.users = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the library's own name
        if self.is_broken:
            raise FakeError("Driver/library version mismatch")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self.devices[index]

    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes:  # noqa: N802
        return str(handle[0])

    def nvmlDeviceGetName(self, handle: Any) -> bytes:  # noqa: N802
        return str(handle[1]).encode()

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(total=handle[2], free=0, used=handle[2])

    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:  # noqa: N802
        return int(handle[3])

    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:  # noqa: N802
        if handle[4] is None:
            raise FakeError("Not Supported")
        return [int(handle[4]), int(handle[4])]


def real_library() -> Any:
    """Return NVIDIA's library where there is a driver to ask."""
    if not os.path.exists(gpu.DRIVER):
        pytest.skip("this host has no NVIDIA driver")
    return pytest.importorskip("pynvml")


@pytest.fixture(params=["made here", "real"])
def nvml(request: pytest.FixtureRequest) -> Any:
    if request.param == "real":
        return real_library()
    return FakeNvml(
        ("GPU-b", "NVIDIA H200", 139 * GIB, 1, False),
        ("GPU-a", "Tesla K80", 11 * GIB, 0, None),
    )


class TestEveryLibrary:
    """What holds of both; the real one is asked where there is one."""

    def test_devices_have_names_sizes_and_nodes(self, nvml: Any) -> None:
        found = gpu.devices_of(nvml)
        assert found
        assert len({device.uuid for device in found}) == len(found)
        for device in found:
            assert device.uuid.startswith("GPU-")
            assert device.name
            assert device.memory_bytes >= GIB
            assert device.minor >= 0
        assert [device.minor for device in found] == sorted(device.minor for device in found)

    def test_asking_twice_tells_the_same(self, nvml: Any) -> None:
        assert gpu.devices_of(nvml) == gpu.devices_of(nvml)

    def test_it_has_the_error_that_is_waited_for(self, nvml: Any) -> None:
        assert issubclass(nvml.NVMLError, Exception)


def test_a_device_that_is_cut_up_is_left_out_and_the_library_let_go() -> None:
    library = FakeNvml(
        ("GPU-a", "NVIDIA A100", 80 * GIB, 0, True), ("GPU-b", "NVIDIA A100", 80 * GIB, 1, False)
    )
    assert gpu.devices_of(library) == (Device("GPU-b", "NVIDIA A100", 80 * GIB, 1),)
    assert library.users == 0


def test_a_library_that_fails_says_nothing_of_devices() -> None:
    library = FakeNvml()
    library.is_broken = True
    with pytest.raises(HostError, match="Driver/library version mismatch") as caught:
        gpu.devices_of(library)
    assert not isinstance(caught.value, CapabilityMissing)


def test_without_a_driver_there_is_no_gpu_and_no_library_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "DRIVER", "/nowhere/version")
    with pytest.raises(CapabilityMissing, match="no NVIDIA driver") as caught:
        gpu.identity()
    words = str(caught.value).lower()
    assert not any(word in words for word in ("capacity", "exhausted", "insufficient"))


def test_a_missing_extra_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(CapabilityMissing) as caught:
        gpu.prove()
    assert caught.value.hint is not None
    assert "nvidia-ml-py" in caught.value.hint
    assert gpu.known() == ()


def test_what_was_proved_is_known_until_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml(("GPU-a", "NVIDIA H200", 139 * GIB, 0, False))
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert gpu.prove() == "GPU-a: NVIDIA H200, 139GiB"
    assert gpu.known() == (Device("GPU-a", "NVIDIA H200", 139 * GIB, 0),)
    with pytest.raises(CapabilityMissing, match="GPU-z is not there any more"):
        gpu.nodes_of("GPU-z")
    seen: list[tuple[Device, ...]] = []

    def count() -> int:
        seen.append(gpu.known())
        return 1

    monkeypatch.setattr(library, "nvmlDeviceGetCount", count)
    gpu.prove()
    assert seen == [gpu.known()], "who is launched meanwhile finds its device"
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    library.devices = ()
    with pytest.raises(CapabilityMissing, match="has no GPU"):
        gpu.prove()
    assert gpu.known() == ()
