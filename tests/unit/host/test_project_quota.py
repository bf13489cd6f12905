"""What is said of project quotas where they can't be had, and where nobody can tell."""

import errno
import os
import resource
from pathlib import Path

import pytest

from axern.errors import CapabilityMissing, QuotaError
from axern.host import project_quota


def test_a_file_system_without_quotas_is_a_definite_no(tmp_path: Path) -> None:
    with pytest.raises(CapabilityMissing, match="has no project quotas"):
        project_quota.require_enforced("/proc")
    with pytest.raises(CapabilityMissing, match="it is no folder"):
        project_quota.require_enforced(f"{tmp_path}/missing")


def test_where_no_descriptor_is_left_nothing_is_told() -> None:
    """A definite no would end every sandbox that has a storage limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        with pytest.raises(QuotaError) as caught:
            project_quota.require_enforced("/proc")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EPERM, errno.EINTR])
def test_a_sick_file_system_is_no_definite_no(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(project_quota, "_quotactl", refuse)
    with pytest.raises(QuotaError) as caught:
        project_quota.require_enforced("/proc")
    assert caught.value.errno == number
