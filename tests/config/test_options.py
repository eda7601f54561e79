"""Names of options and variables are made from the path of a setting."""

from __future__ import annotations

from gateway.config.options import option_of, server_options, variable_of


def test_names_are_made_from_the_path_and_are_unique() -> None:
    """One rule for all."""
    assert option_of(("limits", "header_field")) == "--limits-header-field"
    assert variable_of(("limits", "header_field")) == "SEAWALL_LIMITS_HEADER_FIELD"
    paths = [path for path, _ in server_options()]
    assert len({option_of(path) for path in paths}) == len({variable_of(path) for path in paths}) == len(paths)
