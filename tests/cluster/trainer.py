"""What a training rule looks like to the executor: takes its time in steps, stops at its deadline, and goes on.

`trainer.py RESULT STEPS STEP_S WHAT`: WHAT is `well`, `fail` (says so in state.json), `crash`, `deaf`
(works on until it is killed), `memory` (takes what it can get), `stuck` (stops without progress) or `again` (ends in
its second start).
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

MARGIN_S = 3
result, steps, step_s, what = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
checkpoint, state = result.parent / "checkpoint.json", result.parent / "state.json"
signalled = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: signalled.append(signal.Signals(number).name))


def write(path: Path, value: object) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def stop(cause: str, done: int) -> None:
    write(checkpoint, done)
    write(state, {"state": "checkpointed", "progress": done, "cause": cause})
    sys.exit(75)


def nodes() -> list[str]:
    """Where Slurm, PBS or Grid Engine has put the job, the latter two by first words of lines of their files; else this host."""
    if listed := os.environ.get("SLURM_JOB_NODELIST"):
        return sorted(subprocess.check_output(["scontrol", "show", "hostnames", listed], text=True).split())
    listed = os.environ.get("PBS_NODEFILE") or os.environ.get("PE_HOSTFILE")
    lines = Path(listed).read_text().splitlines() if listed else [socket.gethostname()]
    return sorted({line.split()[0] for line in lines})


done = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
with open("starts.log", "a") as starts:
    starts.write(f"{result.parent.name} {done} {os.environ.get('MULTINODE_JOB')}\n")
if what == "again" and Path("starts.log").read_text().count(f"{result.parent.name} ") > 1:
    steps = done + 1
deadline = float(os.environ.get("MULTINODE_DEADLINE", "inf"))
if what == "fail":
    write(state, {"state": "failed", "progress": 0, "cause": "the loss is not a number"})
    sys.exit(1)
if what == "crash":
    sys.exit(1)
if what == "stuck":
    stop("nothing works", done)
hoard = []
while done < steps and not Path("enough").exists():
    time.sleep(step_s)
    if what == "memory":
        hoard.append(os.urandom(50 << 20))
    done += 1
    if what != "deaf" and time.time() > deadline - MARGIN_S:
        stop("the deadline is near", done)
    if signalled and what != "deaf":
        stop(f"signal {signalled[0]}", done)
write(state, {"state": "finished", "progress": done, "cause": ""})
write(result, {"steps": done, "nodes": nodes()})
