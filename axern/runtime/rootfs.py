"""The root file system of one sandbox: layers of its own over a shared one that is only read.

Mount points, host name and resolver files are real files in a skeleton of ours, which covers the
shared lower. Whatever the lower has in their place, even a link, is hidden and never followed.

    runc,  writable    upper over skeleton over lower, ids shifted
    runc,  read-only   skeleton over lower, ids shifted
    runsc, both        skeleton over lower; runsc keeps changes in an overlay of its own
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath

from axern.errors import HostError, MountError, ProgramNotExecutable, ProgramNotFound, RootfsRefused
from axern.host import filestore, idmap, linux, mounts
from axern.runtime import connection, storage
from axern.runtime.layout import SandboxPaths
from axern.runtime.oci import SandboxSpec

MOUNT_POINTS = ("dev", "proc", "sys")
"""Folders that the runtime mounts over; see bundle.py."""
_FILE_MODE = 0o644
_FOLDER_MODE = 0o755
_TRAVERSE_MODE = 0o710
"""The mapped root, as the folder's group, may pass through; nobody else on the host."""
_DETACH_TIMEOUT_S = 10
_MAGIC_BYTES = 256
"""BINPRM_BUF_SIZE of include/uapi/linux/binfmts.h: what the kernel looks at to choose a format."""
_PATH_PARTS = 64
"""How many folders of PATH are searched: usual are ten, and one request may name 65 000."""
_INTERPRETER_DEPTH = 4
"""How many interpreters the kernel follows; fs/exec.c, exec_binprm."""


def create_folders(spec: SandboxSpec, paths: SandboxPaths, *, maps_ids: bool) -> None:
    """Make the sandbox's own folders and the skeleton, with the ids of root inside.

    Raises:
        FilestoreError: One exists already, or the file system refused.
        QuotaError: The store is not in the project that limits it.
        HostError: Root inside, another user on the host, could not reach them.
    """
    root_id = idmap.first_id(spec.lane) if maps_ids else 0
    if maps_ids:
        _check_reachable(os.path.dirname(paths.folder))
    filestore.create_folder(paths.folder, mode=_TRAVERSE_MODE, gid=root_id)
    filestore.create_folder(paths.bundle, mode=_TRAVERSE_MODE, gid=root_id)
    for folder in (paths.lower, paths.rootfs):
        filestore.create_folder(folder, mode=_FOLDER_MODE)
    _write_skeleton(paths.skeleton, spec, root_id)
    filestore.create_folder(paths.store, mode=0o700)
    storage.enter(spec, paths)
    if not maps_ids:
        filestore.create_folder(paths.overlay, mode=0o700)
    elif not spec.rootfs_readonly:
        filestore.create_folder(paths.upper, mode=_FOLDER_MODE, uid=root_id, gid=root_id)
        filestore.create_folder(paths.work, mode=0o700, uid=root_id, gid=root_id)
    storage.verify(spec, paths)


def _check_reachable(folder: str) -> None:
    for path in (folder, *(str(parent) for parent in PurePath(folder).parents)):
        if not os.stat(path).st_mode & stat.S_IXOTH:
            raise HostError(
                f"root inside a sandbox can't pass through {path}",
                syscall="stat",
                path=path,
                hint=f"chmod o+x {path}",
            )


def _write_skeleton(skeleton: str, spec: SandboxSpec, root_id: int) -> None:
    for folder in (skeleton, *(f"{skeleton}/{name}" for name in (*MOUNT_POINTS, "etc"))):
        filestore.create_folder(folder, mode=_FOLDER_MODE, uid=root_id, gid=root_id)
    files = {"hostname": f"{spec.hostname}\n", **connection.files(spec)}
    for name, text in files.items():
        path = f"{skeleton}/etc/{name}"
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
            os.fchown(file.fileno(), root_id, root_id)
            os.fchmod(file.fileno(), _FILE_MODE)


def mount(spec: SandboxSpec, paths: SandboxPaths, *, maps_ids: bool) -> None:
    """Mount the root file system at `paths.rootfs`; afterwards it is the sandbox's only mount.

    Raises:
        RootfsRefused: The lower is no folder, or its ids can't be mapped.
        MountError: The kernel refused the overlay.
    """
    _attach_lower(spec, paths, maps_ids=maps_ids)
    flags = linux.MS_NODEV | linux.MS_NOSUID
    options = f"lowerdir={paths.skeleton}:{paths.lower}"
    if maps_ids and not spec.rootfs_readonly:
        # volatile: nobody mounts these layers again after a crash, so nothing must be synced, and
        # unmounting does not flush the whole file system beneath.
        options += f",upperdir={paths.upper},workdir={paths.work},volatile"
    else:
        flags |= linux.MS_RDONLY
    try:
        linux.mount("overlay", paths.rootfs, "overlay", flags, options)
    except OSError as err:
        raise MountError(
            f"cannot mount the root file system of {spec.sandbox_id}",
            syscall="mount",
            path=paths.rootfs,
            errno=err.errno,
            data=options,
        ) from err
    # A program that another thread is just starting holds a copy of the lower's descriptor until
    # its exec, so that the lower may be busy for a moment.
    mounts.unmount_below(paths.lower, _DETACH_TIMEOUT_S)


def _attach_lower(spec: SandboxSpec, paths: SandboxPaths, *, maps_ids: bool) -> None:
    """Attach a read-only clone of the shared file system at `paths.lower`.

    The overlay keeps a reference of its own, so that this mount is undone right after it is made.
    """
    if not os.path.isdir(spec.rootfs):
        raise RootfsRefused(f"the root file system {spec.rootfs} is not a folder")
    try:
        tree_fd = idmap.clone_tree(spec.rootfs, spec.lane if maps_ids else None)
    except MountError as err:
        raise RootfsRefused(err.message, hint=err.hint) from err
    try:
        linux.move_mount(tree_fd, paths.lower)
    except OSError as err:
        raise MountError(
            f"cannot attach {spec.rootfs}", syscall="move_mount", path=paths.lower, errno=err.errno
        ) from err
    finally:
        os.close(tree_fd)


def check_program(spec: SandboxSpec, paths: SandboxPaths) -> None:
    """Check inside the mounted root file system that the workload's program can be executed.

    Both runtimes then answer alike, before anything was started. Links are followed as the
    sandbox will follow them: never out of the root.

    Raises:
        ProgramNotFound: It, or the interpreter that it names, is missing.
        ProgramNotExecutable: It is a folder, has no x bit, or is of no known format.
        RootfsRefused: The working directory is missing.
    """
    program = spec.argv[0]
    with _opened(os.open(paths.rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root_fd:
        try:
            os.close(_open_inside(root_fd, spec.cwd, os.O_PATH | os.O_DIRECTORY))
        except OSError as err:
            raise RootfsRefused(
                f"the working directory {spec.cwd} is not in the root file system"
            ) from err
        found_unusable = False
        for folder in _folders_to_search(program, spec.search_path):
            candidate = os.path.join(spec.cwd, folder, program)
            try:
                verdict = _is_executable(root_fd, candidate)
            except OSError:
                break  # such as a name too long: here runsc would end its search
            if verdict and not os.path.isabs(folder or "/"):
                raise ProgramNotExecutable(program, "was found by a relative part of PATH")
            if verdict:
                _check_format(root_fd, spec, candidate, _INTERPRETER_DEPTH)
                return
            found_unusable = found_unusable or verdict is False
    if found_unusable:
        raise ProgramNotExecutable(program, "can't be executed")
    raise ProgramNotFound(program, "not found in the root file system")


def _folders_to_search(program: str, search_path: str) -> list[str]:
    """Return the parts of *search_path*, an empty one as `.`; one of "" if it is not searched.

    A hit in a relative part is refused: runc would refuse it too, and runsc would pass it over.
    """
    if "/" in program:
        return [""]
    parts = search_path.split(":", _PATH_PARTS)[:_PATH_PARTS]
    return [part or "." for part in parts]


def _is_executable(root_fd: int, path: str) -> bool | None:
    """Say whether *path* inside the root is a file with an x bit; None if it is not there.

    Raises:
        OSError: Nothing can be there, such as below a file.
    """
    try:
        fd = _open_inside(root_fd, path, os.O_PATH)
    except (FileNotFoundError, PermissionError):
        return None
    with _opened(fd):
        mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def _check_format(root_fd: int, spec: SandboxSpec, path: str, depth: int) -> None:
    program = spec.argv[0]
    try:
        fd = _open_inside(root_fd, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as err:
        raise ProgramNotExecutable(program, os.strerror(err.errno or 0)) from err
    with _opened(fd):
        head = os.read(fd, _MAGIC_BYTES)
    if head.startswith(b"\x7fELF"):
        return
    words = head[2:].partition(b"\n")[0].split() if head.startswith(b"#!") else []
    if not words or not depth:
        raise ProgramNotExecutable(program, "is no program and names no interpreter")
    interpreter = os.path.join(spec.cwd, os.fsdecode(words[0]))
    try:
        usable = _is_executable(root_fd, interpreter)
    except OSError:
        usable = None
    match usable:
        case None:
            raise ProgramNotFound(program, f"its interpreter {interpreter} was not found")
        case False:
            raise ProgramNotExecutable(program, f"its interpreter {interpreter} can't be executed")
    _check_format(root_fd, spec, interpreter, depth - 1)


def _open_inside(root_fd: int, path: str, flags: int) -> int:
    rules = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS
    return linux.openat2(root_fd, path, flags, resolve=rules)


@contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
