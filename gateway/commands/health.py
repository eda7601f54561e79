"""`seawall health`: ask a gateway whether it is well; the health check of an image without a shell."""

from __future__ import annotations

import click

from gateway.commands.client import control_option, fetch, json_option

__all__ = ["health"]

_TIMEOUT_S = 3.0
_PATHS = {"alive": "/healthz", "ready": "/readyz"}


@click.command()
@click.option("--alive", "question", flag_value="alive", help="Only whether the process answers.")
@click.option("--ready", "question", flag_value="ready", default="ready", help="Whether calls are welcome (default).")
@control_option
@json_option
def health(question: str, control: str, as_json: bool) -> None:
    """Exit code 0 if the gateway is well, 3 if it does not answer, 4 if it does not welcome calls."""
    answer = fetch(control, "GET", _PATHS[question], as_json=as_json, timeout_s=_TIMEOUT_S)
    click.echo(answer["status"])
