"""Refusals of the daemon say why, to each what they may know; to ask is to change nothing."""

import asyncio
from pathlib import Path
from typing import Any

from axern.daemon.explainer import CREDIT_S, SHARE, Explainer
from ledger import transitions
from ledger.admission import AdmissionPolicy, Demand, evaluate
from ledger.refusal import Refusal
from ledger.why import Case
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, play
from tests.unit.ledger.samples import FACTS, GIB, NOW, ask, host_state, proposal, reserve

Json = dict[str, Any]


async def fill(rig: Rig) -> None:
    """Observe the host of 4 cores and 8 GiB; a user holds 5 GiB of it and another one 2 GiB."""
    rig.parts.observer.observe()
    await rig.commit(transitions.observe_node, node=rig.observer.node)
    for peer, memory, ttl_ms in ((USER, 5 * GIB, 600_000), (OTHER, 2 * GIB, 60_000)):
        body = {"requests": {"cpu_milli": 500, "memory_bytes": memory}, "ttl_ms": ttl_ms}
        status, _ = await rig.ask("POST", "/v2/reservations", body, peer=peer)
        assert status == 201


def run_of(tmp_path: Path, memory: int) -> Json:
    (tmp_path / "rootfs").mkdir(exist_ok=True)
    return {
        "command": ["true"],
        "rootfs": str(tmp_path / "rootfs"),
        "runtime_class": "runc",
        "requests": {"cpu_milli": 1, "memory_bytes": memory},
    }


def test_a_refusal_names_who_holds_it_and_what_would_help(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        want = {"requests": {"cpu_milli": 100, "memory_bytes": 2 * GIB}}
        status, answer = await rig.ask("POST", "/v2/reservations", want)
        error = answer["error"]
        assert (status, error["code"]) == (507, "node_memory_capacity_exhausted")
        first, second = error["holders"]
        assert (first["namespace"], first["amount"], first["owner"]["uid"]) == (
            "default", 5 * GIB, USER.uid,
        )  # fmt: skip
        assert (second["phase"], second["dimension"]) == ("reserved", "memory_bytes")
        assert error["would_fit_if"] == [
            {"release": [second["id"]], "release_others": 0, "fewest": True},
            {"request": {"memory_bytes": GIB}},
        ]
        assert error["earliest_fit_at"] == second["expires_at"]
        assert error["retry_after_s"] == 60
        assert error["generation"] == rig.ledger.generation

    play(tmp_path, scenario)


def test_others_are_summed_for_whoever_is_not_root(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        want = {"requests": {"cpu_milli": 100, "memory_bytes": 2 * GIB}}
        _, answer = await rig.ask("POST", "/v2/reservations", want, peer=OTHER)
        own, others = answer["error"]["holders"]
        assert own["owner"]["uid"] == OTHER.uid
        assert (others["kind"], others["amount"], others["count"]) == ("others", 5 * GIB, 1)
        assert [others[name] for name in ("id", "namespace", "owner", "phase")] == [None] * 4
        assert answer["error"]["would_fit_if"][0]["release"] == [own["id"]]
        want = {"requests": {"cpu_milli": 100, "memory_bytes": 5 * GIB}}
        _, answer = await rig.ask("POST", "/v2/reservations", want, peer=OTHER)
        way = answer["error"]["would_fit_if"][0]
        assert way == {"release": [], "release_others": 1, "fewest": True}

    play(tmp_path, scenario)


def test_explain_says_what_run_gets(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        for memory in (GIB, 2 * GIB, 100 * GIB):
            body = run_of(tmp_path, memory)
            before = rig.ledger.generation
            status, answer = await rig.ask("POST", "/v2/explain", body)
            decision = answer["decision"]
            assert status == 200
            assert (rig.ledger.generation, list(rig.parts.runs.names())) == (before, [])
            assert decision["generation"] == before
            assert decision["facts_sequence"] == rig.parts.observer.facts.sequence  # type: ignore[union-attr]
            assert decision["requests"]["memory_bytes"] == memory
            if decision["admitted"]:
                continue
            status, answer = await rig.ask("POST", "/v2/runs", body)
            assert status in (422, 507)
            assert answer["error"] == decision["refusal"]
        status, answer = await rig.ask("POST", "/v2/runs", run_of(tmp_path, GIB))
        assert status == 201

    play(tmp_path, scenario)


def test_explain_tells_of_mistakes_as_run_does(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        for wrong in ({"template": "none"}, {"requests": {"memory_bytes": 0}}, {"other": 1}):
            body = run_of(tmp_path, GIB) | wrong
            ran = await rig.ask("POST", "/v2/runs", body)
            assert await rig.ask("POST", "/v2/explain", body) == ran
            assert ran[0] == 400
        ran = await rig.ask("POST", "/v2/explain", run_of(tmp_path, GIB), peer=USER)
        assert ran[0] == 403
        nothing = {
            name: value for name, value in run_of(tmp_path, GIB).items() if name != "command"
        }
        assert (await rig.ask("POST", "/v2/explain", nothing, peer=ROOT))[0] == 200

    play(tmp_path, scenario)


def test_a_request_id_that_was_granted_is_told(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await fill(rig)
        body = run_of(tmp_path, GIB) | {"request_id": "a"}
        _, ran = await rig.ask("POST", "/v2/runs", body)
        _, answer = await rig.ask("POST", "/v2/explain", body)
        assert answer["decision"]["run_id"] == ran["run"]["id"]
        _, answer = await rig.ask("POST", "/v2/explain", body | {"command": ["false"]})
        assert answer["error"]["code"] == "request_id_conflict"

    play(tmp_path, scenario)


def test_explanations_take_a_share_of_the_time_and_no_more() -> None:
    """A clock by hand that every look moves on: each explanation seems to take 10 ms."""
    moved_s = [0.0]

    def clock() -> float:
        moved_s[0] += 0.005
        return moved_s[0]

    state = host_state()
    reserve(state, proposal("r0", ask(cpu=4000)))
    demand, policy = Demand("default", ask(cpu=1)), AdmissionPolicy()
    refusal = evaluate(state, FACTS, demand, NOW, policy)
    assert isinstance(refusal, Refusal)
    case, explainer = Case(state, FACTS, demand, NOW, policy), Explainer(clock)
    told = [explainer.explain(case, refusal).explanation for _ in range(1_000)]
    done = sum(each is not None for each in told)
    assert told[0] is not None
    assert told[-1] is None or told[-2] is None
    assert 0.005 * done <= CREDIT_S + SHARE * moved_s[0] + 0.01
    moved_s[0] += 1_000
    assert explainer.explain(case, refusal).explanation is not None
    asyncio.run(explainer.turn())
