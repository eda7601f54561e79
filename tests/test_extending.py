"""What docs/extending.md shows is what runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gateway.core.codes import Code
from gateway.core.outcome import Outcome, Rejected, Success
from gateway.pipeline import compose
from tests.builders import call_of, reply_of

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


async def test_the_stage_of_the_page_composes_and_refuses() -> None:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(source, names)
    stage = names["Closed"]()

    async def tool(call: object) -> Outcome:
        return Success(reply_of())

    handler = compose((stage,), tool)
    assert isinstance(await handler(call_of()), Success)
    stage.is_lunch = True
    refused = await handler(call_of())
    assert isinstance(refused, Rejected)
    assert refused.refusal.code is Code.RESOURCE_EXHAUSTED
