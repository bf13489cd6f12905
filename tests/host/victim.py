"""A process that launches or buries one sandbox, to be killed while it does.

usage: victim.py ACTION, the roots and the sandbox as JSON on standard input.
"""

from __future__ import annotations

import json
import sys

from axern.host import cgroup
from axern.runtime import launch, teardown
from axern.runtime.layout import Layout
from axern.runtime.oci import SandboxSpec


def main() -> None:
    """Do what the first argument says."""
    words = json.load(sys.stdin)
    layout = Layout(**words["layout"], hierarchies=cgroup.find_hierarchies())
    fields = words["spec"] | {"argv": tuple(words["spec"]["argv"]), "env": ()}
    spec = SandboxSpec(**fields)
    if sys.argv[1] == "launch":
        launch.create(spec, layout)
        launch.start(spec, layout)
    else:
        teardown.bury(spec.runtime, layout, spec.sandbox_id)


if __name__ == "__main__":
    main()
