"""The memory journal beyond the conformance suite."""

from __future__ import annotations

from gateway.journal.memory import MemoryJournal
from tests.journal.backends import append


async def test_an_append_is_not_durable_before_the_pass_of_the_loop_ends():
    """As with a disk: whoever does not wait cannot count on it."""
    journal = MemoryJournal()
    future = journal.append(append("run", 0))
    assert not future.done()
    assert await journal.head("run") is None
    await future
    assert await journal.head("run") is not None


async def test_it_is_never_fatal():
    journal = MemoryJournal()
    assert not journal.is_fatal
    await journal.close()
    assert not journal.is_fatal
