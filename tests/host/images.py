"""Container images as a stranger might make them: any tar, any document, right or wrong digests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass, field
from typing import Any

TAG = "latest"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of a tar; `data` is its content, None for what has none."""

    name: str
    data: bytes | None = None
    type: bytes = tarfile.REGTYPE
    linkname: str = ""
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    device: tuple[int, int] = (0, 0)
    pax: dict[str, str] = field(default_factory=dict)


def layer(entries: list[Entry]) -> bytes:
    """Return a tar with *entries*, whatever they are."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            member = tarfile.TarInfo(entry.name)
            member.type, member.linkname, member.mode = entry.type, entry.linkname, entry.mode
            member.uid, member.gid, member.pax_headers = entry.uid, entry.gid, entry.pax
            member.devmajor, member.devminor = entry.device
            member.size = len(entry.data or b"")
            tar.addfile(member, None if entry.data is None else io.BytesIO(entry.data))
    return buffer.getvalue()


@dataclass(slots=True)
class Layout:
    """An OCI layout in the folder *path*."""

    path: str

    def blob(self, data: bytes) -> dict[str, Any]:
        """Store *data* and return its descriptor, without a media type."""
        digest = hashlib.sha256(data).hexdigest()
        os.makedirs(f"{self.path}/blobs/sha256", exist_ok=True)
        with open(f"{self.path}/blobs/sha256/{digest}", "wb") as file:
            file.write(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def finish(self, config: bytes, layers: list[dict[str, Any]]) -> str:
        """Write manifest and index; return the digest of the manifest."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, **self.blob(config)},
            "layers": layers,
        }
        found = {
            "mediaType": _MANIFEST,
            **self.blob(json.dumps(manifest).encode()),
            "annotations": {"org.opencontainers.image.ref.name": TAG},
        }
        for name, document in (
            ("index.json", {"schemaVersion": 2, "manifests": [found]}),
            ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
        ):
            with open(f"{self.path}/{name}", "w", encoding="utf-8") as file:
                json.dump(document, file)
        return str(found["digest"])


def write(path: str, *layers: bytes, config: dict[str, Any] | None = None) -> str:
    """Write an OCI layout of *layers*, all of it consistent; return its manifest's digest."""
    layout = Layout(path)
    blobs = [{"mediaType": _LAYER, **layout.blob(gzip.compress(data, 1))} for data in layers]
    document = {
        "architecture": "amd64",
        "os": "linux",
        "config": config or {},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers],
        },
    }
    return layout.finish(json.dumps(document).encode(), blobs)
