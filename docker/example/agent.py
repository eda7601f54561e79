"""An agent that knows a base URL: it holds two things, fails, and has its run undone. Exit code 0 if nothing is left."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

HOLDS, SEAWALL = os.environ["HOLDS_BASE_URL"], os.environ["SEAWALL_URL"]
RUN = f"example-{time.time_ns()}"


def call(method: str, url: str, body: object = None, run: str = RUN) -> dict[str, object]:
    """Make one call of a run and return its JSON."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Seawall-Trajectory": run, "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=data, method=method, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return dict(json.loads(answer.read()))


def wait(url: str, patience_s: float = 60.0) -> None:
    """Return when something answers; not every compose waits for a service's health."""
    until = time.monotonic() + patience_s
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


wait(f"{SEAWALL}/seawall/v1/trajectories/{RUN}")
for thing in ("a table", "a room"):
    print("held:", thing, call("POST", f"{HOLDS}/holds", {"thing": thing})["id"], flush=True)
print("there now:", call("GET", f"{HOLDS}/holds")["held"])
print("the agent fails; its run is undone …")
run = call("POST", f"{SEAWALL}/seawall/v1/trajectories/{RUN}/abort", {"reason": "the agent failed"})
while run["state"] == "compensating":
    time.sleep(0.2)
    run = call("GET", f"{SEAWALL}/seawall/v1/trajectories/{RUN}")
left = call("GET", f"{HOLDS}/holds", run=f"{RUN}-look")["held"]  # a closed run takes no more calls
print(run["state"], "- there now:", left)
sys.exit(1 if left or run["state"] != "aborted_clean" else 0)
