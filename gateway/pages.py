"""The pages on recovery and on watchdogs: their words stand here, their tables and examples are made from the code that decides.

Written by `python -m gateway.docs`. A figure on these pages cannot differ from what the gateway computes, since it is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.config.fields import Field, fields_of
from gateway.config.schema import duration_text
from gateway.core.antispin import MAX_REPAIRS, AntiSpin
from gateway.core.budget import REPORTABLE, RESOURCES, WARN_AT
from gateway.core.codes import CODES, Code, Directive
from gateway.core.economics import Chance, Costs, break_even, expected_repair_cost, loop_bill
from gateway.core.fault import Fault
from gateway.core.message import BytesBody, Reply
from gateway.core.outcome import Failed, InDoubt, Refusal, Rejected
from gateway.core.packet import ENDINGS, OVERDUE
from gateway.core.recovery import MAX_REWORDINGS, RecoverySettings, Situation, Trouble, decide_recovery, trouble_of
from gateway.core.setting import Format
from gateway.core.signature import error_signature, normalise
from gateway.core.statehash import VOLATILE
from gateway.core.watchdog import WatchdogSettings
from gateway.stages.watchdog import NOT_YET_READ, NOT_YET_WRITE

__all__ = ["recovery_page", "watchdogs_page"]

_NOTE: Final = "<!-- Written by `make docs` from the source (gateway/pages.py); changes made here are lost. -->\n"
_SECONDS: Final = Costs(unwind=40.6, rerun=46.0, repair=4.1)
_MONEY: Final = Costs(unwind=0.0, rerun=38_500 * 3e-6 + 3_100 * 15e-6, repair=2_390 * 3e-6 + 180 * 15e-6)
_TRACE: Final = (
    ("ImportError", "cannot import name 'AsyncSession' from 'sqlalchemy.orm'"),
    ("AttributeError", "'AsyncSession' object has no attribute 'sync_engine'"),
    ("TypeError", "NoneType object cannot be interpreted as an integer"),
    ("ImportError", "cannot import name 'AsyncSession' from 'sqlalchemy.orm'"),
)
_CEILING, _SEEN_AT = 50, 4


def recovery_page() -> str:
    """Return `docs/recovery.md`."""
    return "\n".join([
        "# Recovery", "", _NOTE,
        "On every failure of a write the gateway says what the run should do next: wait and retry, correct the step, go back, or call",
        "a person. The agent reads it as `directive` and `explain` in a refusal, as `Seawall-Directive` and `Seawall-Explain` beside a",
        "tool's own answer, and in `_meta` under `dev.seawall/recovery` of an MCP result. With `recovery: {mode: enforce}` on the tool it",
        "is also done to named runs: the run is aborted, or frozen past its pivot.",
        "",
        "## Two ways to recover", "",
        "| | backward: undo and begin again | forward: correct the step |",
        "|---|---|---|",
        "| who acts | the gateway, by compensators bound when steps committed | the agent, by another call |",
        "| is it certain | yes: declared calls, last first, resumable | no: a model's guess, so bounded and measured |",
        "| what is lost | all that was done since | nothing, if it works |",
        "| what it costs | U, the unwinding, and R, doing it again | c_r, one correction |",
        "| past the pivot | not possible | idempotent steps only |",
        "| what bounds it | [unwinding](design.md) ends by itself | K = "
        f"{MAX_REPAIRS} repairs a step, none once an error comes back, the run's budget |",
        "",
        "## Three gates", "",
        "**Gate 1, what kind of trouble it is.** A manifest's own CEL rules come first, then this table.", "",
        *_table(("what happened", "class", "directive before the pivot", "past it"), _gate_one()),
        "",
        "Rules are conditions over `response`, `request` and `params` of an answer that failed; the narrowest class is asked first, and",
        "one that cannot be evaluated does not hold:", "",
        "```yaml",
        "recovery:",
        "  content_block: response.json.error == 'dangerous content'",
        "  fatal: response.json.reason == 'disk is gone'",
        "  transient: response.status == 409 && response.json.reason == 'lock'",
        "  semantic: response.status == 403 && response.json.reason == 'schema'",
        "```", "",
        "**Blocked content** is never sent again in the run as it is: the same arguments are refused with `ERR_CONTENT_BLOCKED`, also",
        f"after a restart. Reworded, it may be tried {MAX_REWORDINGS} times in a row; then the step is blocked. A rewording that works",
        "starts the count anew.", "",
        "**Gate 2, what is left to spend.** A repair has to fit into every budget of the run and leave its `reserve`; see below.", "",
        "**Gate 3, what it is worth.** With nothing to undo the step itself is corrected. Else a repair is tried while its measured chance",
        "is above the break-even `p* = c_r / (U + R)`, in seconds and, where any was spent, in USD. Operations and compensators take as",
        "long as declared (`duration`), else as measured lately; in money U is what compensators are declared to cost (`price`) and R what",
        "the run has spent so far. p is a Beta posterior over what became of earlier repairs of the same operation after the same kind of",
        "error, kept over restarts: `GET /api/v1/repairs`. Before anything was seen it is one half.", "",
        "Anti-spin ends repairing at once, whatever is left, when an error's signature was met before in the same repairs: SHA-256 of its",
        "type, its source and its text without times, ids, numbers, paths and addresses.", "",
        "## Worked example: a migration that fails on its sixth step", "",
        "Seed 000: five steps took 46 s and 38 500 tokens in, 3 100 out; undoing them takes 40.6 s; one repair reads 2 390 tokens, writes",
        "180 and takes 4.1 s.", "",
        *_table(("", "seconds", "USD"), (
            ("going back, U + R", f"{_SECONDS.rollback:.1f}", f"{_MONEY.rollback:.3f}"),
            ("one repair, c_r", f"{_SECONDS.repair:.1f}", f"{_MONEY.repair:.3f}"),
            ("break-even, p*", f"{break_even(_SECONDS):.0%}", f"{break_even(_MONEY):.0%}"),
            ("repairing first, at even odds", f"{expected_repair_cost(_SECONDS, 0.5):.1f}",
             f"{expected_repair_cost(_MONEY, 0.5):.3f}"),
        )),
        "",
        "What the gateway decides for it, by what was seen of such repairs:", "",
        *_table(("repairs that worked, of all", "p", "directive"), _by_chance()),
        "",
        "## Worked example: a repair that spins", "",
        *_table(("error", "signature of", "the sequence says"), _spin()),
        "",
        "## Budgets", "",
        f"A run may carry caps on {_list(RESOURCES)}: at its opening (`budget`), in the header `Seawall-Budget: usd=0.5, calls=100`, in",
        "`_meta` of an MCP call (`dev.seawall/budget`), or in a task packet. A later one can lower a cap, never raise it.", "",
        *_table(("cap", "counted by"), (
            ("`calls`, `steps`", "the gateway, as they leave; never exceeded"),
            ("`retries`", "the gateway: its own repeats, and the agent's of an action that failed; never exceeded"),
            ("`seconds`", "the clock, from the run's opening; calls are cut at it"),
            ("`usd`", "`usage: {price}` of an operation, `usage: {usd}` from its answers, reports"),
            ("`tokens`", "`usage: {tokens}` from answers, reports"),
        )),
        "",
        f"Reports: `POST /seawall/v1/trajectories/ID/usage` with any of {_list(REPORTABLE)}, and `report`, a name under which it counts once.",
        f"From {WARN_AT:.0%} of a cap on, answers carry `Seawall-Budget: usd=0.41/0.5` (`dev.seawall/budget` in `_meta`, `budget` in",
        "refusals). At the cap calls get `ERR_BUDGET_EXHAUSTED`, and the policy decides: rollback, or a person past the pivot. A cap is",
        "exceeded by no more than the calls in flight. Undoing is never refused for want of budget.", "",
        "## Tasks", "",
        "`POST /seawall/v1/tasks` takes a [task packet](task-packet.schema.json): its id names the run, its caps, deadline and retries are",
        "the run's budget, and the same packet under the same `idempotency_key` is the same task. `POST …/tasks/ID/result` ends it with a",
        "[task result](task-result.schema.json) and yields the [result packet](result-packet.schema.json), which `GET …/tasks/ID` shows at",
        "any time.", "",
        *_table(("status", "what the run does"), zip(
            (f"`{ending}`" for ending in ENDINGS),
            ("commits", "is undone; past its pivot it is frozen", "is undone; past its pivot it is frozen", "is frozen for a person"),
            strict=True)),
        "",
        f"A task that runs for {OVERDUE:g} times its deadline is not waited for: its status is `needs_recovery`, and its run does what",
        "`on_abandon` says. So is a step that runs for twice its timeout: it becomes in doubt, is settled, and stands under",
        "`needs_recovery` of its run until then.", "",
        "## Settings", "",
        *_settings(RecoverySettings),
        "",
    ]) + "\n"  # fmt: skip


def watchdogs_page() -> str:
    """Return `docs/watchdogs.md`."""
    settings = WatchdogSettings()
    ceiling, seen = loop_bill(_CEILING), loop_bill(_SEEN_AT)
    times = ceiling.usd / seen.usd
    return "\n".join([
        "# Watchdogs", "", _NOTE,
        "A run that goes in circles looks healthy to everything that asks whether it is alive. The semantic watchdog judges it by what the",
        "world answers, and stops it before it spends. It is on for every tool (`watchdog: {mode: enforce}`), holds calls back instead of",
        "warning, and is slow to call anything a loop: a corpus of honest runs (`tests/gateway/test_honest_runs.py`) has no false alarm.", "",
        "## What is watched", "",
        *_table(("invariant", "how it is seen", "what it catches", "what it costs"), (
            ("repetition",
             f"the same action and the same no, {settings.repeats} times with nothing changed in between, {settings.retries} times "
             "whatever was changed", "`REPEATED_FAILURE_DETECTED`: an invalid call, sent again and again",
             "a look-up; the answer is hashed only when it is a no"),
            ("polling",
             f"the same action and the same answer, {settings.polls} times, or as often as its operation declares",
             "`ENDLESS_POLLING_DETECTED`: waiting for what never comes", "a look-up; declared polls and MCP reads are hashed"),
            ("state cycle",
             f"the states after changes repeat a whole lap of some period up to {settings.period}",
             "`STATE_OSCILLATION_DETECTED`: a change, taken back, made again", f"{settings.period} comparisons a change"),
            ("stagnation",
             f"metrics measured again after {settings.epoch} changes, none of them better",
             "`METRIC_STAGNATION_DETECTED`: busy, and nothing improves", "a comparison a metric"),
            ("entropy", f"Shannon entropy of the last {settings.window} actions",
             "reported only: `gateway_action_entropy`, `seawall.action_entropy_bits` on spans, the run's `watchdog`",
             "a sum, kept up to date"),
        )),
        "",
        "All of it is constant time and bounded memory a step, whatever the length of the run: `python -m loadtests.loops` measures it.", "",
        "**A no** is an answer that is the same whoever asks again: a 4xx, or a refusal for what the call is. What may be another answer soon",
        "is *not yet* and has the patience of a poll:", "",
        *_table(("not yet", "statuses"), (
            ("of a read", ", ".join(map(str, sorted(NOT_YET_READ)))),
            ("of a write", ", ".join(map(str, sorted(NOT_YET_WRITE)))),
            ("of both", "5xx, timeouts, whatever the tool's being out of order does; anything of an operation with `watch: {poll: N}`"),
        )),
        "",
        "Approvals that wait, open circuits, full queues and calls in doubt are counted as nothing: the agent was told to come again. Noes",
        "are compared without these members of JSON, and texts without ids, times, addresses and paths; numbers count:", "",
        "> " + ", ".join(f"`{name}`" for name in sorted(VOLATILE)),
        "",
        "`watchdog: {volatile: [...]}` adds the names of your own tools.", "",
        "## Where states and metrics come from", "",
        *_table(("source", "how"), (
            ("a tool's own read", "`watch: {state: GET /lines}` on the tool, with `select:` for what of it counts; asked before the run's "
             "first change and after each"),
            ("the agent", "`POST /seawall/v1/trajectories/ID/state` with `{state}` or `{hash}`, `{ignore: [names]}`, `{metrics: {name: number}}`"),
            ("the run itself", "a step and the call that its compensator is bound to cancel out; three laps of the same, with nothing else "
             "done or read in between, are a cycle"),
            ("answers", "`watch: {metrics: {passing: response.json.passed}}` on an operation; larger is better"),
        )),
        "",
        "## The ladder", "",
        *_table(("level", "when", "what the agent gets", "what is done"), (
            ("1 interrupt", "the first violation", f"`{Code.WATCHDOG_INTERRUPT.value}` ({CODES[Code.WATCHDOG_INTERRUPT].status}): what "
             "repeated, since which step, do not repeat it, form another hypothesis", "nothing is sent"),
            ("2 rewind and mask", f"another within {settings.relapse} steps", "the same, and the savepoint",
             "the run is taken back to the savepoint before the loop, its own or one marked in retrospect; the action is refused for the "
             "rest of the run"),
            ("3 deadlock", f"{settings.rewinds} of these are spent",
             f"`{Code.SEMANTIC_DEADLOCK.value}` ({CODES[Code.SEMANTIC_DEADLOCK].status}), then and for every later call",
             "leases on credentials end; before the pivot the run is undone, past it frozen with an incident `SEMANTIC_DEADLOCK`"),
        )),
        "",
        "Past the pivot nothing is taken back: the action is masked. Of a run that nobody named actions are masked and no more. Reads are",
        "never held back by states or metrics. An interrupted action may be tried once more after something else was done. A person who",
        "releases a frozen run gives it a full ladder. Counts of noes, states, metrics, masks and spent rewinds are folded from the journal",
        "after a restart; repetitions of reads are counted anew.", "",
        "`mode: observe` counts (`gateway_loops_total`) and holds nothing back, `interrupt` never goes beyond masking, `off` leaves the",
        "stage out; each for the manifest or for one tool (`watch: {mode: observe}`).", "",
        "## What an unnoticed loop costs", "",
        f"Seed 000: a loop of two states, 1 000 tokens at first and 1 100 more each turn, 300 of output, 10 s a turn; a ceiling of {_CEILING}",
        f"turns against a detector that sees the repeat at turn {_SEEN_AT}.", "",
        *_table(("", "turns", "input tokens", "USD", "time"), (
            ("the ceiling", f"{ceiling.turns}", f"{ceiling.input_tokens:,}", f"{ceiling.usd:.2f}", f"{ceiling.seconds / 60:.0f} min"),
            ("the watchdog", f"{seen.turns}", f"{seen.input_tokens:,}", f"{seen.usd:.2f}", f"{seen.seconds:.0f} s"),
        )),
        "",
        f"About {times:.0f} times cheaper. `python -m loadtests.loops` plays it through a whole gateway and counts the turns at the tool.", "",
        "## Settings", "",
        *_settings(WatchdogSettings),
        "",
    ]) + "\n"  # fmt: skip


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _gate_one() -> list[tuple[str, ...]]:
    """Gate 1 as the code decides it, for one example of each kind."""
    no = {
        status: Failed(Fault.CLIENT_ERROR, reply=Reply(status, b"", (), BytesBody(b""))) for status in (401, 422, 507)
    }
    examples = (
        ("connection refused, reset, time-out before anything was done", trouble_of(Failed(Fault.CONNECT))),
        ("429, and 5xx of a tool that fails cleanly", trouble_of(Failed(Fault.THROTTLED))),
        ("an open circuit, a full queue, a spent rate of ours", trouble_of(Rejected(_refusal(Code.CIRCUIT_OPEN)))),
        ("400, 404, 409, 422 and the like: the tool says what is wrong", trouble_of(no[422])),
        ("a postcondition that does not hold", trouble_of(Rejected(_refusal(Code.POSTCONDITION)))),
        ("401, 403, 407: credentials", trouble_of(no[401])),
        ("451, 507: law, full hardware", trouble_of(no[507])),
        ("a rule's no, a second pivot, a spent budget", trouble_of(Rejected(_refusal(Code.POLICY_DENIED)))),
        ("a manifest's `content_block`", Trouble.CONTENT_BLOCK),
        ("sent, and the effect is unknown", trouble_of(InDoubt(Fault.TIMEOUT, _refusal(Code.OUTCOME_UNKNOWN)))),
    )
    rows: list[tuple[str, ...]] = []
    for what, trouble in examples:
        assert trouble is not None
        ends = [
            decide_recovery(Situation(trouble=trouble, is_past_pivot=past, to_undo=1, costs={"s": _SECONDS})).directive
            for past in (False, True)
        ]
        said = ["gates 2 and 3 decide" if end is Directive.FORWARD_REPAIR else f"`{end.value}`" for end in ends]
        rows.append((what, trouble.value.replace("_", " "), *said))
    return rows


def _refusal(code: Code) -> Refusal:
    return Refusal(code=code, detail="")


def _by_chance() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for worked, failed in ((0, 0), (50, 50), (10, 90), (3, 97)):
        chance = Chance(worked, failed)
        decision = decide_recovery(
            Situation(trouble=Trouble.SEMANTIC, to_undo=5, costs={"s": _SECONDS, "usd": _MONEY}, chance=chance)
        )
        rows.append((f"{worked} of {worked + failed}", f"{chance.mean:.3f}", f"`{decision.directive.value}`"))
    return rows


def _spin() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    spin = AntiSpin()
    for number, (kind, text) in enumerate(_TRACE, start=1):
        signature = error_signature(kind, "pytest", text)
        said = spin.failed(signature)
        rows.append((f"{number}. `{kind}`", f"`{normalise(text)}` → `{signature[:8]}…`", said.value.replace("_", " ")))
    return rows


def _settings(settings: type) -> list[str]:
    return _table(
        ("key", "default", "meaning"),
        [(f"`{field.name}`", _default(field), field.doc) for field in fields_of(settings).values()],
    )


def _default(field: Field) -> str:
    if field.default is None or field.default == ():
        return ""
    if Format.SECONDS in field.formats and isinstance(field.default, float):
        return f"`{duration_text(field.default)}`"
    return f"`{getattr(field.default, 'value', field.default)}`"
