"""Random interleavings of writers against a journal and against a dictionary: they must agree.

The model knows the protocol only: versions, fences after failures, claims, the order of calls.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.journal import Conflict, KeyClaim, KeyOwner
from tests.journal.backends import BACKENDS, append, texts

STREAMS = st.sampled_from("abc")
WISH = st.tuples(STREAMS, st.integers(-1, 1), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans())


class Interleavings(RuleBasedStateMachine):
    """Batches of appends made in one pass, some wrong, some lazy, some cancelled; readings and reopenings in between."""

    backend_name = "memory"

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.backend = BACKENDS[self.backend_name](Path(self.folder.name) / "data")
        self.journal = self.run(self.backend.open())
        self.model: dict[str, list[str]] = {}
        self.is_open: dict[str, bool] = {}
        self.fenced: set[str] = set()
        self.keys: dict[bytes, KeyOwner] = {}
        self.notes: dict[str, bytes] = {}
        self.count = 0

    def run(self, awaitable):
        return self.loop.run_until_complete(awaitable)

    def teardown(self):
        self.run(self.journal.close())
        self.loop.close()
        self.folder.cleanup()

    @rule(wishes=st.lists(WISH, min_size=1, max_size=8))
    def append_in_one_pass(self, wishes):
        self.run(self._append(wishes))

    async def _append(self, wishes):
        expectations = []
        for stream, off_by, count, is_lazy, is_open, is_cancelled in wishes:
            self.count += 1
            names = [f"{self.count}.{n}" for n in range(count)]
            version = len(self.model.get(stream, []))
            expected = max(0, version + off_by)
            claims = (KeyClaim(stream.encode(), self.count, 10),)
            future = self.journal.append(append(stream, expected, *names, is_open=is_open, claims=claims), lazy=is_lazy)
            is_good = expected == version and stream not in self.fenced
            if is_good:
                self.model.setdefault(stream, []).extend(names)
                self.is_open[stream] = is_open
                self.keys[stream.encode()] = KeyOwner(stream, self.count)
            else:
                self.fenced.add(stream)
            if is_cancelled:
                future.cancel()
            else:
                expectations.append((future, is_good))
        await asyncio.wait({future for future, _ in expectations} or {self.loop.create_task(self.journal.flush())})
        await self.journal.flush()
        for future, is_good in expectations:
            assert (future.exception() is None) if is_good else isinstance(future.exception(), Conflict)

    @rule(stream=STREAMS, after=st.integers(0, 4))
    def read_again(self, stream, after):
        assert texts(self.run(self.journal.read(stream, after))) == self.model.get(stream, [])[after:]
        self.fenced.discard(stream)

    @rule(name=st.sampled_from(["x/1", "x/2", "y/1"]), value=st.binary(max_size=3))
    def remember(self, name, value):
        async def remember():
            self.journal.remember(name, value)

        self.run(remember())
        self.notes[name] = value

    @rule()
    def open_again(self):
        if self.backend.survives_reopening:
            self.run(self.journal.close())
            self.journal = self.run(self.backend.open())
            self.fenced.clear()

    @invariant()
    def journal_and_model_agree(self):
        heads = {head.stream: head for head in self.run(self.journal.heads())}
        assert {name: head.version for name, head in heads.items()} == {n: len(e) for n, e in self.model.items()}
        is_open = [head.stream for head in self.run(self.journal.open_heads())]
        assert is_open == sorted(name for name, flag in self.is_open.items() if flag)
        for digest, owner in self.keys.items():
            assert self.run(self.journal.find_key(digest, 9)) == owner
        assert self.run(self.journal.recall("")) == self.notes
        stats = self.run(self.journal.stats())
        assert (stats.streams, stats.open_streams) == (len(self.model), len(is_open))
        assert stats.entries == sum(map(len, self.model.values()))


class SqliteInterleavings(Interleavings):
    backend_name = "sqlite"


TestMemory = Interleavings.TestCase
TestMemory.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestSqlite = SqliteInterleavings.TestCase
TestSqlite.settings = settings(
    max_examples=15, stateful_step_count=15, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
