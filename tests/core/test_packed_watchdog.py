"""A watchdog that is packed between any two steps says the same, and knows the same, as one that never is."""

from __future__ import annotations

import math
from hashlib import blake2b

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.core.manifest import Tier
from gateway.core.packed_watchdog import read_watchdog, write_watchdog
from gateway.core.packing import Reader, Shared, Writer
from gateway.core.parked import FORMS
from gateway.core.tool import BoundRequest
from gateway.core.trajectory import Step, StepState, Trajectory
from gateway.core.watchdog import Ended, Watchdog, WatchdogSettings, action_hash, inverse

SHARED = Shared()
SETTINGS = WatchdogSettings(window=6, repeats=2, retries=4, polls=5, epoch=3, period=3)
ACTIONS = [blake2b(bytes([number]), digest_size=16).digest() for number in range(5)]


def again(dog: Watchdog, state: Trajectory) -> Watchdog:
    writer = Writer(SHARED, FORMS)
    write_watchdog(writer, dog, state)
    reader = Reader(bytes(writer.data), SHARED, FORMS)
    read = read_watchdog(reader, state)
    assert reader.place == len(writer.data)
    return read


def known(dog: Watchdog) -> dict[str, object]:
    """Everything that a watchdog knows, in the order in which it would forget it."""
    members = {name: getattr(dog, name) for name in dog.__slots__ if name not in ("effects", "_logs")}
    effects = {name: getattr(dog.effects, name) for name in dog.effects.__slots__}
    ordered = {name: list(members[name].items()) for name in ("_seen", "_orbits", "_masked")}
    return {**members, **effects, **ordered, "_standing": list(effects["_standing"].items())}


class Packed(RuleBasedStateMachine):
    """Two watchdogs are told the same; one is packed and read back after each thing."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Trajectory(id="r1")
        self.bare, self.packed = Watchdog(SETTINGS), Watchdog(SETTINGS)

    def both(self) -> tuple[Watchdog, Watchdog]:
        return self.bare, self.packed

    @rule(
        action=st.sampled_from(ACTIONS), undo=st.sampled_from([None, "a", "b"]), body=st.sampled_from([None, '{"x":1}'])
    )
    def change(self, action: bytes, undo: str | None, body: str | None) -> None:
        number = len(self.state.steps) + 1
        bound = None if undo is None else BoundRequest("pay", "DELETE", f"/{undo}", (), body)
        step = Step(number, "pay", "hold", Tier.COMPENSABLE, action.hex(), "f", 1, "k", StepState.COMMITTED, 2 * number)
        step.compensator = bound
        self.state.steps[number] = step
        for dog in self.both():
            dog.acted(action, None, Ended.DONE, is_change=True, number=number)
            call = ("pay", "POST", "/hold", action)
            after = dog.effects.changed(call, bound and inverse(bound), action_hash(action), number)
            dog.state_is(after, "net effect", laps=2)

    @rule(undo=st.sampled_from(["a", "b"]))
    def undo(self, undo: str) -> None:
        """The agent takes a step back by its inverse."""
        for dog in self.both():
            dog.effects.changed(("pay", "DELETE", f"/{undo}", b""), None, 7, len(self.state.steps))

    @rule(action=st.sampled_from(ACTIONS), result=st.integers(0, 2), cap=st.sampled_from([None, 3]))
    def read(self, action: bytes, result: int, cap: int | None) -> None:
        for dog in self.both():
            dog.acted(action, result, Ended.DONE, cap=cap)
            dog.effects.looked(hash((action, result)))

    @rule(action=st.sampled_from(ACTIONS), result=st.integers(0, 1), ended=st.sampled_from([Ended.NO, Ended.NOT_YET]))
    def fail(self, action: bytes, result: int, ended: Ended) -> None:
        for dog in self.both():
            dog.acted(action, result, ended)

    @rule(action=st.sampled_from(ACTIONS), is_read=st.booleans())
    def ask(self, action: bytes, is_read: bool) -> None:
        bare, packed = [dog.check(action, is_read=is_read) for dog in self.both()]
        assert bare == packed
        assert self.bare.may_object(action) == self.packed.may_object(action)
        if bare is not None and packed is not None:
            for dog, loop in zip(self.both(), (bare, packed), strict=True):
                dog.interrupted(loop, action)
                dog.heard_s = 17.25

    @rule(value=st.integers(0, 2), source=st.sampled_from(["agent", "tool"]))
    def see(self, value: int, source: str) -> None:
        assert self.bare.state_is(value, source) == self.packed.state_is(value, source)

    @rule(value=st.floats(0.0, 2.0))
    def measure(self, value: float) -> None:
        assert self.bare.measured({"tests": value}) == self.packed.measured({"tests": value})

    @rule()
    def start_over(self) -> None:
        for dog in self.both():
            dog.since = 5

    @invariant()
    def pack(self) -> None:
        self.packed = again(self.packed, self.state)
        assert known(self.packed) == known(self.bare)
        assert self.packed.view() == self.bare.view()


TestPacked = Packed.TestCase
TestPacked.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_watchdog_of_writes_takes_few_bytes_a_step() -> None:
    """Its states and what stands follow from the steps."""
    machine = Packed()
    for number in range(5):
        machine.change(ACTIONS[number], "a" if number % 2 else "b", None)
        machine.state.steps[number + 1].compensator = BoundRequest("pay", "DELETE", f"/{number}")
    dog, state = Watchdog(SETTINGS), machine.state
    for number, step in state.steps.items():
        assert step.compensator is not None
        dog.acted(bytes.fromhex(step.action), None, Ended.DONE, is_change=True, number=number)
        action = bytes.fromhex(step.action)
        dog.state_is(
            dog.effects.changed((number,), inverse(step.compensator), action_hash(action), number), "n", laps=2
        )
    writer = Writer(SHARED, FORMS)
    write_watchdog(writer, dog, state)
    assert len(writer.data) < 30


def test_a_new_watchdog_is_read_back() -> None:
    dog = again(Watchdog(SETTINGS, is_gentle=True), Trajectory(id="r1"))
    assert known(dog) == known(Watchdog(SETTINGS, is_gentle=True))
    assert dog.heard_s == -math.inf
