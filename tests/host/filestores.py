"""Labs whose filestore is an XFS of their own, with project quotas where the kernel has them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest

from axern.errors import CapabilityMissing
from axern.host import loop_file, project_quota
from axern.host.project_quota import Limits, Project
from axern.runtime import storage
from axern.runtime.layout import Layout
from tests.host.conftest import Lab, made_lab

SIZE_BYTES = loop_file.SMALLEST_BYTES
MIB = 1024**2


@contextmanager
def xfs_lab() -> Iterator[Lab]:
    """Yield a lab on XFS; afterwards also prove that no quota record is left."""
    with pytest.MonkeyPatch.context() as patches, made_lab(partial(_make, patches)) as lab:
        yield lab
        for spec in lab.made:
            lab.bury(spec)
        if is_real():
            assert storage.lanes(lab.layout.filestore) == {}


class StandIn:
    """Quota records for a kernel without them: nothing is enforced, the project ids are real."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._limits: dict[int, Limits] = {}

    def require_enforced(self, folder: str) -> None:
        assert folder == self._folder

    def set_limits(self, folder: str, project: int, limits: Limits) -> None:
        self._limits[project] = limits

    def read(self, folder: str, project: int) -> Project | None:
        names = os.listdir(self._folder)
        ids = [project_quota.project_of(f"{self._folder}/{name}") for name in names]
        limits = self._limits.get(project, project_quota.NOTHING)
        return Project(project, limits, 0, ids.count(project))


def is_real() -> bool:
    """Tell whether it is the kernel that has the quota records, and no stand-in."""
    return not isinstance(getattr(project_quota.read, "__self__", None), StandIn)


def _make(patches: pytest.MonkeyPatch, layout: Layout) -> None:
    os.makedirs(layout.filestore)
    loop_file.create(layout.filestore_image, SIZE_BYTES)
    try:
        loop_file.mount(layout.filestore_image, layout.filestore)
    except CapabilityMissing:
        # A kernel without quotas still has project ids, and all that can be done to them.
        with mock.patch.object(loop_file, "_MOUNT_OPTIONS", ""):
            loop_file.mount(layout.filestore_image, layout.filestore)
        stand_in = StandIn(layout.filestore)
        for name in ("require_enforced", "set_limits", "read"):
            patches.setattr(project_quota, name, getattr(stand_in, name))
