"""`axern template`: what there is to run from."""

from __future__ import annotations

from axern.cli.commands.common import LIST_OUTPUT, OUTPUT
from axern.cli.grammar import Argument, Command, Group, text

_NAME = Argument("name", "NAME", "name of the template", source="templates")

TEMPLATE = Group(
    "template",
    "import, show and remove root file systems",
    example="axern template list",
    commands=(
        Command(
            "list",
            "list the templates that a run may name",
            example="axern template list",
            action="axern.cli.actions.template:list_all",
            options=(LIST_OUTPUT,),
        ),
        Command(
            "get",
            "show one template, and where it came from",
            example="axern template get busybox",
            action="axern.cli.actions.template:get",
            arguments=(_NAME,),
            options=(OUTPUT,),
        ),
        Command(
            "add",
            "import a template from a folder or an image",
            detail="The source is a path on this host: a folder, oci:PATH[:TAG] for an OCI layout, "
            "or docker-archive:FILE[:REF] for what docker save writes. Images need skopeo and "
            "umoci. The source is copied, and runs take over the variables of an image, such as "
            "PATH. Root only. Ctrl-C cancels it, and nothing is left.",
            example="axern template add python --from ./rootfs",
            action="axern.cli.actions.template:add",
            arguments=(Argument("name", "NAME", "name for it: a-z, 0-9, '.', '_' and '-'"),),
            options=(
                text(
                    "--from",
                    "SOURCE",
                    "DIR, oci:PATH[:TAG] or docker-archive:FILE[:REF]",
                    name="source",
                    source="files",
                ),
                OUTPUT,
            ),
        ),
        Command(
            "remove",
            "remove a template that no run uses",
            example="axern template remove python",
            action="axern.cli.actions.template:remove",
            arguments=(_NAME,),
            options=(OUTPUT,),
        ),
    ),
)
