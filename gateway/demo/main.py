"""`seawall demo`: runs the story, shows it, and answers with an exit code that scripts can use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.demo.checks import Check
    from gateway.demo.events import Event
    from gateway.demo.timeline import Timeline

__all__ = ["demo"]

NOT_AS_PROMISED, COULD_NOT_RUN, INTERRUPTED = 1, 3, 130
PACE_S = 0.35


@click.command()
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per event, and the verdict last.")
@click.option("--keep", is_flag=True, help="Keep the folder with manifest, journal and logs, and print its path.")
@click.option("--pace", type=click.FloatRange(0, 5), default=None, help="Seconds before each step of the agent.")
@click.option("--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds at most.")
def demo(is_json: bool, keep: bool, pace: float | None, timeout: float) -> None:
    """Watch a run fail, be undone, and then succeed, against real tool servers.

    Everything runs on this machine's loopback and ends with the command. Exit code 0: everything that was shown was also
    verified at the tool servers; 1: something was not as promised (the list says what); 3: the demo could not run.
    """
    import asyncio
    import shutil
    import tempfile
    from pathlib import Path

    from gateway.demo.timeline import choose_timeline

    timeline = choose_timeline(is_json=is_json)
    if pace is None:
        pace = PACE_S if sys.stdout.isatty() and not is_json else 0.0
    folder = Path(tempfile.mkdtemp(prefix="seawall-demo-"))
    try:
        sys.exit(asyncio.run(_perform(folder, timeline, pace_s=pace, timeout_s=timeout)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("interrupted; everything that was started has been ended", err=True)
        sys.exit(INTERRUPTED)
    finally:
        if keep:
            click.echo(f"kept: {folder}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _perform(folder: Path, timeline: Timeline, *, pace_s: float, timeout_s: float) -> int:
    import asyncio
    import signal

    from gateway.demo.events import Event
    from gateway.demo.process import DemoError
    from gateway.demo.story import Story

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    story = Story(folder, _until_closed(timeline, task.cancel), pace_s=pace_s)
    try:
        async with asyncio.timeout(timeout_s):
            checks = await story.tell()
    except TimeoutError:
        click.echo(f"the demo was not done after {timeout_s:.0f} s; try again with a longer --timeout", err=True)
        return COULD_NOT_RUN
    except DemoError as error:
        click.echo(f"the demo cannot go on: {error}", err=True)
        return COULD_NOT_RUN
    finally:
        try:
            await story.close()
        finally:
            story.kill()
    holds = all(check.holds for check in checks)
    timeline.show(story.elapsed_s, Event(actor="demo", kind="verdict", text=_verdict(checks), data=_facts(checks)))
    return 0 if holds else NOT_AS_PROMISED


def _until_closed(timeline: Timeline, stop: Callable[[], object]) -> Callable[[float, Event], None]:
    """Show events until nobody reads them any more (`| head`), then stop the demo."""

    def show(offset_s: float, event: Event) -> None:
        try:
            timeline.show(offset_s, event)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            stop()

    return show


def _verdict(checks: list[Check]) -> str:
    broken = sum(not check.holds for check in checks)
    return f"all {len(checks)} checks hold" if not broken else f"{broken} of {len(checks)} checks do not hold"


def _facts(checks: list[Check]) -> dict[str, object]:
    from dataclasses import asdict

    return {"ok": all(check.holds for check in checks), "checks": [asdict(check) for check in checks]}
