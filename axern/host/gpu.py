"""The GPUs of this host, as NVIDIA's management library tells them; it is an optional extra.

A device is named by its UUID, which no other order at boot changes, and which CUDA takes.
Source: NVML API reference; Documentation/admin-guide/devices.txt for the nodes.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import Any

from axern.errors import CapabilityMissing, HostError
from axern.host.process import boot_id
from ledger.units import format_bytes, format_short

DRIVER = "/proc/driver/nvidia/version"
_SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
"""What every user of any device needs beside the node of its own."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU; `name` is the product's, `minor` the number of its node /dev/nvidia<minor>."""

    uuid: str
    name: str
    memory_bytes: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A character device: its path and its two numbers."""

    path: str
    major: int
    minor: int


_found: tuple[Device, ...] = ()


def identity() -> str:
    """Name the boot, the driver and the devices that have a node; cheap, asks no library.

    A node that is made anew is another one: it may belong to another device.

    Raises:
        CapabilityMissing: There is no driver.
    """
    try:
        with open(DRIVER, encoding="utf-8", errors="replace") as file:
            driver = file.readline().strip()
    except FileNotFoundError as err:
        raise CapabilityMissing(
            "this host has no NVIDIA driver, and so no GPU that could be reserved",
            syscall="open",
            path=DRIVER,
        ) from err
    with os.scandir("/dev") as entries:
        nodes = sorted(f"{each.name}:{each.inode()}" for each in entries if _is_node(each.name))
    return f"{boot_id()} {driver} {' '.join(nodes)}"


def _is_node(name: str) -> bool:
    return name.startswith("nvidia")


def prove() -> str:
    """Ask the library for every device, remember them for `known`, and name them.

    Raises:
        CapabilityMissing: The library or its extra is missing, or there is no device.
        HostError: The library failed.
    """
    global _found  # noqa: PLW0603 - one host, one inventory; replaced as a whole
    devices: tuple[Device, ...] = ()
    try:
        devices = devices_of(_library())
    finally:
        _found = devices  # until now, who is being launched finds the device that it was given
    if not devices:
        raise CapabilityMissing("the driver has no GPU that could be reserved", syscall="nvml")
    return "; ".join(
        f"{device.uuid}: {device.name}, {format_short(device.memory_bytes, format_bytes)}"
        for device in devices
    )


def known() -> tuple[Device, ...]:
    """Return the devices that `prove` has found last, in the order of their nodes."""
    return _found


def devices_of(nvml: Any) -> tuple[Device, ...]:
    """Return every device that the library *nvml* tells of, but those that are cut up (MIG).

    Raises:
        HostError: The library failed.
    """
    try:
        nvml.nvmlInit()
        try:
            handles = [
                nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
            ]
            found = [_device(nvml, handle) for handle in handles if not _is_cut_up(nvml, handle)]
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise HostError(f"the NVIDIA library failed: {error}", syscall="nvml") from error
    return tuple(sorted(found, key=lambda device: device.minor))


def nodes_of(uuid: str) -> tuple[DeviceNode, ...]:
    """Return the device nodes that a user of the GPU *uuid* needs, as they are on this host.

    Raises:
        CapabilityMissing: It is not there any more.
    """
    device = next((each for each in _found if each.uuid == uuid), None)
    if device is None:
        raise CapabilityMissing(f"the GPU {uuid} is not there any more", syscall="nvml")
    own = _node(f"/dev/nvidia{device.minor}")
    shared: list[DeviceNode] = []
    for path in _SHARED_NODES:
        with contextlib.suppress(FileNotFoundError):
            shared.append(_node(path))
    return (own, *shared)


def _library() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise CapabilityMissing(
            "there is an NVIDIA driver, but the library to ask it is not installed",
            syscall="import",
            hint="pip install nvidia-ml-py, into the environment of axernd",
        ) from error
    return pynvml


def _device(nvml: Any, handle: object) -> Device:
    return Device(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        minor=int(nvml.nvmlDeviceGetMinorNumber(handle)),
    )


def _is_cut_up(nvml: Any, handle: object) -> bool:
    """Tell whether MIG is on, where the whole device can't be used; older ones have no MIG."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:
        return False
    return bool(current)


def _text(answer: str | bytes) -> str:
    """Return what the library said; its versions before 11.5 say bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer


def _node(path: str) -> DeviceNode:
    status = os.stat(path)
    if not stat.S_ISCHR(status.st_mode):
        raise HostError(f"{path} is no character device", syscall="stat", path=path)
    return DeviceNode(path, os.major(status.st_rdev), os.minor(status.st_rdev))
