"""Hold two cores and 1 GiB while something runs on the host, outside of sandboxes."""

import subprocess
import sys

import axern

client = axern.Client(config=sys.argv[1] if len(sys.argv) > 1 else None)
with client.lease(cpu="500m", memory="64MiB", name="build", ttl="5m") as lease:
    print(f"held for at least {lease.expires_in_s:.0f} s")
    with subprocess.Popen(["sh", "-c", "echo working; sleep 1"]) as work:
        # It must not use what is held no more.
        while work.poll() is None:
            if lease.lost.wait(0.1):
                work.terminate()
print("given back:", all(row["id"] != lease.id for row in client.reservations()))
