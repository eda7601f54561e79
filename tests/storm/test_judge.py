"""Claims: what can be said, and what is refused with a reason."""

from __future__ import annotations

import math

import pytest

from gateway.storm.judge import ClaimError, judge

FIGURES = {"seawall": {"amplification": 1.05, "recovery_s": math.inf, "during": {"calls": 10}, "codes": "text"}}


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ("seawall.amplification <= 1.1", True),
        ("seawall.amplification < 1", False),
        ("seawall.during.calls == 2 * 5", True),
        ("seawall.during.calls / 4 - 0.5 >= 2", True),
        ("-seawall.during.calls < 0", True),
        ("seawall.recovery_s <= 60", False),
    ],
)
def test_a_claim_is_arithmetic_over_figures(claim: str, holds: bool) -> None:
    assert judge(claim, FIGURES).holds is holds


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ("seawall.amplificaton <= 1", "there is no `amplificaton`"),
        ("other.calls <= 1", "there is no `other`"),
        ("seawall.during <= 1", "is not a number"),
        ("seawall.codes <= 1", "is not a number"),
        ("seawall.amplification", "must be one comparison"),
        ("0 < seawall.amplification < 2", "must be one comparison"),
        ("__import__('os').system('x') == 0", "only numbers"),
        ("seawall['amplification'] <= 1", "only numbers"),
        ("seawall.amplification <=", "cannot be read"),
    ],
)
def test_what_is_no_claim_is_refused_with_a_reason(claim: str, reason: str) -> None:
    with pytest.raises(ClaimError, match=reason):
        judge(claim, FIGURES)
