"""Gateways in processes of their own, ended in every case."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from tests.gateway.harness import Child


@pytest.fixture
async def make_child() -> AsyncIterator[Callable[..., Child]]:
    children: list[Child] = []

    def make(*arguments: object, **options: object) -> Child:
        children.append(Child(*arguments, **options))  # type: ignore[arg-type]
        return children[-1]

    yield make
    for child in children:
        if child.process is not None:
            await child.kill()
