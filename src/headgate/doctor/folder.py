"""The data folder: may we write there, what kind of disk is it, how much room is left."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from headgate.doctor.finding import Finding, fail, ok, warn

CHECK: Final = "data folder"
LEAST_FREE_BYTES: Final = 1_000_000_000
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
)
_FLEETING: Final = {
    "tmpfs": "it is gone after a restart of the machine",
    "ramfs": "it is gone after a restart of the machine",
    "overlay": "in a container it is gone with the container: mount a volume there",
}


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder as it was found. `trouble` says why nothing can be written there."""

    path: str
    kind: str = ""
    """The file system's, where the system tells."""
    free_bytes: int = 0
    trouble: str = ""


def look_at_folder(path: Path) -> Folder:
    """Write a file there and take it away again. A folder that is not there yet is judged by the one it would be in."""
    place = path.absolute()
    there = next(parent for parent in (place, *place.parents) if parent.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".headgate-doctor-"):
            pass
        free_bytes = shutil.disk_usage(there).free
    except OSError as error:
        return Folder(path=str(place), trouble=error.strerror or str(error))
    return Folder(path=str(place), kind=_kind(there), free_bytes=free_bytes)


def judge_folder(folder: Folder, *, sqlite: bool, min_free_bytes: int = 0) -> Finding:
    if folder.trouble:
        return fail(
            CHECK,
            f"{folder.path}: {folder.trouble}",
            "give its owner the right to write, or set another data_dir",
        )
    found = f"{folder.path} ({folder.kind or 'unknown kind'}, {folder.free_bytes / 1e9:.1f} GB free)"
    if sqlite and folder.kind.removeprefix("fuse.") in _REMOTE:
        advice = "SQLite cannot be shared over a network disk: use a local data_dir, or PostgreSQL"
        return fail(CHECK, found, advice)
    if folder.free_bytes < min_free_bytes:
        refused = "jobs, files, batches and keys are" if sqlite else "files and batches are"
        advice = f"make room, or lower limits.min_free_bytes ({min_free_bytes:,}): new {refused} refused"
        return fail(CHECK, found, advice)
    if folder.free_bytes < LEAST_FREE_BYTES:
        return warn(CHECK, found, "make room: without it jobs and keys are refused")
    if (why := _FLEETING.get(folder.kind)) is not None:
        return warn(CHECK, found, why)
    return ok(CHECK, found)


def _kind(path: Path) -> str:
    """The kind of the file system that is mounted nearest, as Linux tells it."""
    real = os.path.realpath(path)
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    kinds = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        kinds[before.split(" ")[4].replace("\\040", " ")] = after.split(" ")[0]
    return max(
        ((mount, kind) for mount, kind in kinds.items() if Path(real).is_relative_to(mount)),
        key=lambda entry: len(entry[0]),
        default=("", ""),
    )[1]
