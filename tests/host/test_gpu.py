"""A device inside a real sandbox: a stand-in node, since hosts without a GPU have none."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from axern.host import gpu
from axern.host.gpu import DeviceNode
from tests.host.conftest import Lab

pytestmark = pytest.mark.host
STAND_IN = "/dev/loop-control"
"""A character device that every host has and no sandbox."""


def test_its_node_is_there_and_its_name_in_the_environment(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = os.stat(STAND_IN)
    node = DeviceNode(STAND_IN, os.major(status.st_rdev), os.minor(status.st_rdev))
    monkeypatch.setattr(gpu, "nodes_of", lambda uuid: (node,) if uuid == "GPU-a" else ())
    words = f"test -c {STAND_IN} && echo there; echo $CUDA_VISIBLE_DEVICES"
    spec = replace(lab.spec("runc", "sh", "-c", words), gpu_device="GPU-a")
    assert lab.run(spec).stdout == b"there\nGPU-a\n"
    assert lab.run(lab.spec("runc", "sh", "-c", words)).stdout == b"\n"
