"""Run ten commands at a time with asyncio; where the node is full, each waits for its turn."""

import asyncio
import sys

import axern


async def main(config: str | None) -> None:
    """Run them all, and print what they have found."""
    client = axern.AsyncClient(config=config)

    async def square(number: int) -> int:
        script = f"echo $(({number} * {number}))"
        result = await client.run(
            ["sh", "-c", script], cpu="100m", memory="64MiB", retry_for="5m", labels={"job": "many"}
        )
        return int(result.stdout)

    print(await asyncio.gather(*map(square, range(10))))
    async with client.lease(cpu="100m", memory="64MiB") as lease:
        rows = await client.reservations()
        print("held:", any(row["id"] == lease.id for row in rows))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
