"""What a runtime is told: paths from the id alone, the bundle, options, and its words read back."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path

import pytest

from axern import failpoint
from axern.errors import CommandFailed, ProgramNotExecutable, ProgramNotFound
from axern.host.cgroup import Cgroup, Hierarchies
from axern.host.cgroup_values import CgroupOptions, limits_of
from axern.host.gpu import DeviceNode
from axern.host.idmap import first_id
from axern.runtime import bundle
from axern.runtime.launch import runtime_for
from axern.runtime.layout import Layout, SandboxPaths
from axern.runtime.oci import DEFAULT_PATH, SandboxSpec
from axern.runtime.runc import Runc
from axern.runtime.runsc import Runsc
from ledger.resources import OptionalResources, Resources

MIB = 1024**2

LAYOUT = Layout(
    state_dir="/var/lib/axern",
    run_dir="/run/axern",
    filestore="/var/lib/axern/filestore",
    templates="/var/lib/axern/templates",
    cgroup_root="system.slice/axernd.service",
    hierarchies=Hierarchies("/sys/fs/cgroup", ()),
)
SPEC = SandboxSpec(
    sandbox_id="0123456789abcdef",
    runtime="runc",
    argv=("sh", "-c", "echo ü"),
    env=(("A", "1"),),
    cwd="/tmp",
    rootfs="/srv/rootfs",
    rootfs_readonly=True,
    lane=2,
    hostname="box",
)


def test_every_path_names_the_sandbox() -> None:
    paths = LAYOUT.sandbox(SPEC.sandbox_id)
    for field in fields(SandboxPaths):
        value = getattr(paths, field.name)
        text = value.folder if isinstance(value, Cgroup) else value
        assert SPEC.sandbox_id in text, field.name
    assert paths.wall.folder == f"/sys/fs/cgroup/{LAYOUT.cgroup_root}/sandboxes/{SPEC.sandbox_id}"
    assert not paths.monitor.path.startswith(paths.wall.path)


@pytest.mark.parametrize(
    "name", ["", "a", "..", "a/../../b", "A" * 16, "-" * 16, "a" * 65, "a\n" * 8]
)
def test_hostile_ids_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="sandbox id"):
        LAYOUT.sandbox(name)


@pytest.mark.parametrize("path", ["relative", "/with,comma", "/with:colon", "/with space"])
def test_roots_that_overlay_would_misread_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="absolute"):
        replace(LAYOUT, filestore=path)


@pytest.mark.parametrize("maps_ids", [True, False])
def test_the_bundle_asks_for_isolation(maps_ids: bool) -> None:
    config = bundle.build(SPEC, LAYOUT.sandbox(SPEC.sandbox_id), maps_ids=maps_ids)
    kinds = {namespace["type"] for namespace in config["linux"]["namespaces"]}
    assert kinds >= {"pid", "network", "ipc", "uts", "mount"}
    assert ("user" in kinds) is maps_ids
    if maps_ids:
        mapping = {"containerID": 0, "hostID": first_id(2), "size": 65_536}
        assert config["linux"]["uidMappings"] == config["linux"]["gidMappings"] == [mapping]
    process = config["process"]
    assert process["noNewPrivileges"] is True
    assert process["terminal"] is False
    assert process["oomScoreAdj"] == bundle.OOM_SCORE_ADJ
    assert process["args"] == ["sh", "-c", "echo ü"]
    assert process["env"] == ["A=1", f"PATH={DEFAULT_PATH}"]
    granted = {name for names in process["capabilities"].values() for name in names}
    assert not granted & {"CAP_SYS_ADMIN", "CAP_NET_RAW", "CAP_MKNOD", "CAP_SYS_PTRACE"}
    assert config["root"] == {"path": LAYOUT.sandbox(SPEC.sandbox_id).rootfs, "readonly": True}


def test_the_bundle_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    bundle.write({"a": "ü\udcff"}, str(path))
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert json.loads(path.read_text(errors="surrogateescape")) == {"a": "ü\udcff"}
    with pytest.raises(FileExistsError):
        bundle.write({}, str(path))


def test_runtimes_by_name() -> None:
    assert runtime_for("runc", LAYOUT).maps_ids
    runsc = runtime_for("runsc", LAYOUT)
    assert not runsc.maps_ids
    assert "--network=none" in runsc.options()
    assert runsc.create_options(None, enforced=False)[-2:] == (
        "--ignore-cgroups",
        "--overlay2=none",
    )
    assert "--ignore-cgroups" not in runsc.create_options(None, enforced=True)
    with pytest.raises(ValueError, match="kata"):
        runtime_for("kata", LAYOUT)


def test_state_is_found_by_the_whole_id() -> None:
    assert Runc("/runc", "/r").state_names(["abc", "abcd"], "abc") == ["abc"]
    entries = ["abc_sandbox:abc.state", "abc_sandbox:abc.lock", "xyz_sandbox:xyz.state"]
    assert Runsc("/runsc", "/r").state_names(entries, "abc") == entries[:2]


@pytest.mark.parametrize(
    ("runtime", "said", "error"),
    [
        ("runc", 'exec: "nosuch": executable file not found in $PATH', ProgramNotFound),
        ("runc", 'exec: "/x/nosuch": stat /x/nosuch: no such file or directory', ProgramNotFound),
        ("runc", 'exec: "/x/nosuch": permission denied', ProgramNotExecutable),
        ("runc", "mkdir /run/x: no such file or directory", type(None)),
        ("runsc", "starting container: mounting nosuch: weird", type(None)),
        ("runsc", "cannot find nosuch: no such file or directory", ProgramNotFound),
        ("runsc", "loading nosuch: permission denied", ProgramNotExecutable),
    ],
)
def test_a_runtimes_words(runtime: str, said: str, error: type[Exception]) -> None:
    assert type(runtime_for(runtime, LAYOUT).program_error("nosuch", said)) is error


def test_a_failed_command_repeats_its_last_words_only() -> None:
    error = CommandFailed(("/usr/bin/runc", "start"), 1, "\n".join(str(n) for n in range(100)))
    assert str(error) == "runc ended with 1: 95 | 96 | 97 | 98 | 99"


def test_failpoints_are_all_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failpoint.VARIABLE, raising=False)
    for name in failpoint.LAUNCH + failpoint.BURY:
        failpoint.failpoint(name)
    with pytest.raises(ValueError, match="unknown"):
        failpoint.failpoint("launch.unheard-of")
    lists = (failpoint.LAUNCH, failpoint.CONNECT, failpoint.BURY, failpoint.RELEASE, failpoint.LOG)
    assert len(failpoint.NAMES) == sum(map(len, lists))


def test_limits_are_told_to_runc_alone_and_shown_to_its_guest() -> None:
    """A limit of its own could strike first in runsc, which reads the one above."""
    held = limits_of(
        Resources(cpu_milli=500, memory_bytes=MIB),
        OptionalResources(cpu_milli=1500, memory_bytes=128 * MIB + 5),
        "runc",
        CgroupOptions(pids_max=64),
    )
    spec = replace(SPEC, runtime="runc", limits=held)
    config = bundle.build(spec, LAYOUT.sandbox(SPEC.sandbox_id), maps_ids=True)
    assert config["linux"]["resources"] == {
        "unified": {"memory.oom.group": "1"},
        "memory": {"limit": 128 * MIB, "swap": 128 * MIB},
    }
    assert config["mounts"][-1]["destination"] == "/sys/fs/cgroup"
    assert "ro" in config["mounts"][-1]["options"]
    spec = replace(spec, runtime="runsc")
    config = bundle.build(spec, LAYOUT.sandbox(SPEC.sandbox_id), maps_ids=False)
    assert "resources" not in config["linux"]
    assert config["mounts"][-1]["destination"] == "/sys"


def test_a_gpu_is_named_and_its_nodes_are_all_that_is_handed_in() -> None:
    spec = replace(SPEC, gpu_device="GPU-a", env=(("CUDA_VISIBLE_DEVICES", "all"),))
    nodes = (DeviceNode("/dev/nvidia0", 195, 0), DeviceNode("/dev/nvidiactl", 195, 255))
    paths = LAYOUT.sandbox(SPEC.sandbox_id)
    config = bundle.build(spec, paths, maps_ids=True, devices=nodes)
    assert "CUDA_VISIBLE_DEVICES=GPU-a" in config["process"]["env"]
    assert [each["path"] for each in config["linux"]["devices"]] == [node.path for node in nodes]
    rules = config["linux"]["resources"]["devices"]
    assert [(rule["major"], rule["minor"], rule["access"]) for rule in rules] == [
        (195, 0, "rw"),
        (195, 255, "rw"),
    ]
    assert all(rule["allow"] for rule in rules)
    without = bundle.build(SPEC, paths, maps_ids=True)
    assert "devices" not in without["linux"]
