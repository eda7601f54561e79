"""Counting instructions gives the same number each time, and says where they are spent."""

from loadtests.opcodes import count


def test_a_count_is_the_same_each_time_and_names_our_functions() -> None:
    first, second = count("read"), count("read")
    assert abs(first.total - second.total) <= first.total * 0.05  # an alarm that rang, a batch that went
    names = " ".join(place for place, _ in first.by_function())
    assert "gateway/ingress/proxy.py" in names
    assert "loadtests" not in names
