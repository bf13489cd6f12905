"""All events in one order: what commits did and the notes between, each once, whoever reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from axern.api.decoding import Event, EventParser
from axern.api.messages import Peer, Request, StreamResponse
from axern.cli.commands import events as commands
from axern.daemon import event_number, event_view, happenings
from axern.daemon.event_number import Number, behind, of_commit, of_note
from axern.daemon.handlers import Handlers
from ledger import claims, namespaces, transitions
from ledger.claims import ClaimProposal, Host
from ledger.errors import AxernError, InvalidArgument
from ledger.testing import small_node, small_proposal
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, play

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def following(
    rig: Rig, query: str = "", peer: Peer = ROOT, headers: dict[str, str] | None = None
) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """Open the stream, and close it in the end as the server does."""
    pairs = dict(part.split("=", 1) for part in query.split("&") if part)
    request = Request("request", "GET", "/v2/events", pairs, headers or {}, b"", peer)
    answer = await Handlers(rig.parts)(request)
    assert isinstance(answer, StreamResponse)
    stream = cast("AsyncGenerator[bytes, None]", answer.parts)
    async with contextlib.aclosing(stream):
        yield stream


async def read(
    rig: Rig, query: str = "", peer: Peer = ROOT, headers: dict[str, str] | None = None
) -> list[Event]:
    """Return all events that there are."""
    parser = EventParser()
    query = f"{query}&follow=false"
    async with following(rig, query, peer, headers) as stream:
        return [event async for part in stream for event in parser.feed(part)]


async def told(rig: Rig, query: str = "", peer: Peer = ROOT) -> list[Json]:
    return [json.loads(event.data) for event in await read(rig, query, peer)]


async def refused(rig: Rig, query: str) -> tuple[str, str]:
    try:
        await read(rig, query)
    except AxernError as error:
        return error.code, error.message
    raise AssertionError(query)


async def ready(rig: Rig, cpu_milli: int = 1000) -> None:
    rig.observer.node = small_node(cpu_milli)
    await rig.parts.observe()


def test_numbers_have_an_order_and_one_spelling() -> None:
    ordered = [
        behind(0), of_commit(1, 1), of_commit(1, 2), behind(1), of_note(1, 1), of_note(1, 9),
        of_commit(2, 1), of_commit(10, 1), behind(10),
    ]  # fmt: skip
    assert sorted({*ordered}) == ordered
    assert [event_number.parse(str(number), "since") for number in ordered] == ordered
    assert [str(number) for number in ordered[:6]] == ["0", "1.1", "1.2", "1", "1~1", "1~9"]
    assert [number.after for number in ordered[:6]] == [0, 0, 0, 1, 1, 1]
    for text in ("", "x", "1.", "1.0", "1.-2", "01", "1.2.3", "1~", "٣", "1" * 17, "-1", " 1"):
        with pytest.raises(InvalidArgument, match="no number of an event"):
            event_number.parse(text, "since")


def test_what_happened_is_told_in_order(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        lease = small_proposal(1, cpu_milli=600)
        await rig.parts.reserve(lease)
        with pytest.raises(AxernError):
            await rig.parts.reserve(small_proposal(2, cpu_milli=600))
        await rig.parts.events.flush(rig.ledger.generation, rig.clock.now.wall_ms)
        await rig.commit(transitions.release, reservation_id=lease.id, evidence="gone")
        found = await told(rig)
        assert [(e["sequence"], e["kind"], e["operation"]) for e in found] == [
            ("1.1", "node", "observe-node"),
            ("2.1", "grant", "reserve"),
            ("2~1", "refusal", "node-rejected"),
            ("3.1", "reclaim", "release"),
        ]
        _, grant, refusal, release = found
        assert (grant["id"], grant["by"], grant["owner_uid"]) == (lease.id, "uid:1000", 1000)
        assert grant["message"] == "CPU 600m, memory 64MiB"
        assert refusal["detail"]["code"] == "node_cpu_capacity_exhausted"
        assert refusal["detail"]["shortfalls"][0]["short_by"] == 200
        assert (release["namespace"], release["owner_uid"]) == ("default", 1000)
        assert (release["phase"], release["message"]) == ("released", "gone")
        assert {frozenset(event) for event in found} == {frozenset(found[0])}

    play(tmp_path, scenario)


def test_whoever_comes_back_goes_on_behind_what_it_was_told(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig, 100_000)
        for number in range(1, 6):
            await rig.parts.reserve(small_proposal(number))
            rig.parts.note(happenings.daemon("started", str(number)))
        every = [event.id for event in await read(rig)]
        assert len(every) == 11
        for index, last in enumerate(every):
            rest = [event.id for event in await read(rig, f"since={last}")]
            assert rest == every[index + 1 :]
            headers = {"last-event-id": last}
            assert [e.id for e in await read(rig, "since=0", headers=headers)] == rest
        assert [e.id for e in await read(rig, "since=4")] == ["5.1", "6.1", *every[6:]]

    play(tmp_path, scenario)


def test_who_follows_is_told_at_once_and_nothing_beyond_what_is_being_written(
    tmp_path: Path,
) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig, 100_000)
        parser = EventParser()
        async with following(rig) as stream:
            assert [(e.name, e.id) for e in parser.feed(await anext(stream))] == [("begin", "1")]
            coming = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await rig.parts.reserve(small_proposal(1))
            assert [e.id for e in parser.feed(await coming)] == ["2.1"]
            rig.parts.events.held = rig.ledger.generation  # as while a note is written
            coming = asyncio.ensure_future(anext(stream))
            await rig.parts.reserve(small_proposal(2))
            rig.parts.note(happenings.daemon("started", ""))
            await asyncio.sleep(0.05)
            assert not coming.done()
            await rig.parts.events.flush(2, rig.clock.now.wall_ms)
            seen = [e.id for e in parser.feed(await coming)]
            while len(seen) < 2:
                seen += [e.id for e in parser.feed(await anext(stream))]
            assert seen == ["2~1", "3.1"]
        assert not rig.parts.committer.watchers

    play(tmp_path, scenario)


def test_filters(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig, 100_000)
        now = rig.clock.now
        await rig.commit(namespaces.create, name="team", now=now, by="uid:0")
        await rig.commit(namespaces.set_quota, name="team", ceilings={"cpu_milli": 50}, by="uid:0")
        await rig.parts.reserve(small_proposal(1))
        rig.clock.advance(60_000)
        rig.observer.observe()
        await rig.commit(transitions.persist_beats, beats={small_proposal(1).id: 5})
        await rig.parts.reserve(small_proposal(2))
        assert [e["operation"] for e in await told(rig, "kind=operator")] == [
            "namespace-create",
            "quota-set",
        ]
        (quota,) = (e for e in await told(rig, "namespace=team") if e["operation"] == "quota-set")
        assert (quota["message"], quota["detail"]["quota"]["cpu_milli"]) == ("CPU 50m", 50)
        assert [e["kind"] for e in await told(rig, "kind=grant,upkeep")] == [
            "grant",
            "upkeep",
            "grant",
        ]
        since = await told(rig, f"since_ms={now.wall_ms + 1}&kind=grant")
        assert [e["id"] for e in since] == [small_proposal(2).id]
        assert (await refused(rig, "kind=grants"))[0] == "invalid_argument"
        assert await told(rig, f"since=0&since_ms={now.wall_ms + 1}&kind=grant") == since
        assert (await refused(rig, "since=one"))[0] == "invalid_argument"
        assert (await refused(rig, "sinse=1"))[0] == "invalid_argument"

    play(tmp_path, scenario)


def test_details_of_others_are_for_their_owner_and_root(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        await rig.commit(
            partial(namespaces.create, name="team", now=rig.clock.now, by=f"uid:{OTHER.uid}")
        )
        mine = small_proposal(1, cpu_milli=600)  # of uid 1000
        await rig.parts.reserve(mine)
        with pytest.raises(AxernError):
            await rig.parts.reserve(small_proposal(2, cpu_milli=600))
        await rig.parts.events.flush(rig.ledger.generation, rig.clock.now.wall_ms)
        await rig.commit(transitions.release, reservation_id=mine.id, evidence="secret", by="uid:0")
        seen = {peer: await told(rig, peer=peer) for peer in (ROOT, USER, OTHER)}
        assert seen[USER] == seen[ROOT]
        kinds = ["node", "operator", "grant", "refusal", "release"]
        assert [e["kind"] for e in seen[OTHER]] == kinds
        assert seen[OTHER][:2] == seen[ROOT][:2]
        for event in seen[OTHER][2:]:
            assert (event["by"], event["owner_uid"], event["message"]) == (None, None, "")
            assert event["detail"] == {}
        assert "secret" not in json.dumps(seen[OTHER])

    play(tmp_path, scenario)


def test_what_is_gone_is_said(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig, 100_000)
        for number in range(1, 4):
            await rig.parts.reserve(small_proposal(number))
        rig.ledger.checkpoint()
        await rig.parts.reserve(small_proposal(4))
        (archived,) = (tmp_path / "ledger" / "archive").iterdir()
        assert [e.id for e in await read(rig)] == ["1.1", "2.1", "3.1", "4.1", "5.1"]
        archived.unlink()
        assert [e.id for e in await read(rig)] == ["5.1"]
        assert [e.id for e in await read(rig, "since=4")] == ["5.1"]
        for since in ("3", "4.1", "0", "1~1"):
            assert await refused(rig, f"since={since}") == (
                "not_found",
                f"events behind {since} are kept no more: the oldest is 5.1",
            )
        code, message = await refused(rig, "since=9.1")
        assert (code, "is at commit 5" in message) == ("state_conflict", True)

    play(tmp_path, scenario)


def test_notes_that_were_given_up_are_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("axern.daemon.event_log.MOST_OF_A_NAMESPACE", 2)

    async def scenario(rig: Rig) -> None:
        await ready(rig)
        for word in "abcd":
            rig.parts.note(happenings.daemon(word, ""))
            await rig.parts.events.flush(rig.ledger.generation, rig.clock.now.wall_ms)
        found = await read(rig, "since=0")
        assert [(e.name, e.id) for e in found] == [
            ("dropped", "0"),
            ("node", "1.1"),
            ("daemon", "1~3"),
            ("daemon", "1~4"),
        ]
        assert b"some notes up to 1~2 are kept no more" in found[0].data
        assert [e.id for e in await read(rig, "since=1~2")] == ["1~3", "1~4"]
        assert [e.name for e in await read(rig, "since=1~1")] == ["dropped", "daemon", "daemon"]

    play(tmp_path, scenario)


def test_damage_is_said_and_the_rest_told(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig, 100_000)
        for number in range(1, 4):
            await rig.parts.reserve(small_proposal(number))
        (journal,) = (tmp_path / "ledger").glob("journal-*")
        data = journal.read_bytes()
        at = data.index(f"{2:032x}".encode())
        with journal.open("r+b") as file:
            file.seek(at)
            file.write(b"7")
        found = await read(rig)
        assert [e.name for e in found] == ["dropped", "node", "grant", "grant"]
        assert b"commit 3 can't be read" in found[0].data

    play(tmp_path, scenario)


def test_lines_of_json(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        headers = {"accept": "application/x-ndjson"}
        async with following(rig, "follow=false", headers=headers) as stream:
            data = b"".join([part async for part in stream])
        (line,) = data.splitlines()
        assert json.loads(line)["sequence"] == "1.1"

    play(tmp_path, scenario)


def test_a_claim_is_one_event_and_its_refusal_too(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        facts, _ = rig.observer.observe()
        host = Host(facts, rig.clock.now, rig.parts.admission_policy)
        for number in (1, 2, 3):
            await rig.parts.reserve(small_proposal(number))
        proposal = ClaimProposal("c" * 32, "default", {"cpu_milli": 500}, hard=True, ttl_ms=None)
        await rig.commit(claims.create, proposal=proposal, host=host, by="uid:0")
        await rig.commit(claims.expire, claim_id="c" * 32, now=rig.clock.now)
        await rig.commit(claims.release, claim_id="c" * 32, by="daemon", note="expired")
        body = {"namespace": "default", "amounts": {"cpu_milli": 5_000}}
        assert (await rig.ask("POST", "/v2/claims", body))[0] in (422, 507)
        created, ended, refusal = (await told(rig))[-3:]
        assert (created["kind"], created["operation"], created["id"]) == (
            "operator",
            "claim-create",
            "c" * 32,
        )
        assert created["message"] == "CPU 500m"
        assert (ended["kind"], ended["namespace"]) == ("reclaim", "default")
        assert (refusal["kind"], refusal["by"]) == ("refusal", "uid:0")

    play(tmp_path, scenario)


def test_every_kind_can_be_asked_for() -> None:
    assert len(set(event_view.KINDS)) == len(event_view.KINDS)
    assert set(event_view.KINDS) > event_view.UNASKED
    assert commands.KINDS == event_view.KINDS
    assert isinstance(behind(1), Number)
