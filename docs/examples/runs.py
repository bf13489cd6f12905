"""Run a command in a sandbox, look at how it ended, and ask what would fit before."""

import sys

import axern

client = axern.Client(config=sys.argv[1] if len(sys.argv) > 1 else None)

decision = client.explain(cpu=1, memory="64MiB")
print("one more would fit:", decision["admitted"])
try:
    client.run(["true"], memory="900TiB")
except axern.Refused as refused:
    print(refused.code, [short["dimension"] for short in refused.error["shortfalls"]])

result = client.run(
    ["sh", "-c", "echo $GREETING; echo careful >&2; exit 3"],
    cpu="100m",
    memory="64MiB",
    env={"GREETING": "good day"},
    on_output=lambda stream, data: print(f"{stream}: {data.decode()}", end=""),
)
print("ended with", result.exit_code, result.stdout)
