"""Counts to N, one per second: `count.py N OUTPUT STATE`. It stops in time to be resumed in another job.

Three things are needed: what is done is saved where the next job finds it, the state file says so, and the exit status is
not 0 as long as there is no output.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

MARGIN_S = 10
"""It stops so long before its job is killed; saving has to fit in."""
goal, output, state = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
saved = output.with_suffix(".saved.json")
deadline = float(os.environ.get("MULTINODE_DEADLINE", "inf"))
told = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, _: told.append(signal.Signals(number).name))


def write(file: Path, value: object) -> None:
    """Whole or not at all."""
    temporary = file.with_name(f"{file.name}.tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(file)


done = json.loads(saved.read_text()) if saved.exists() else 0
while done < goal:
    time.sleep(1)
    done += 1
    if told or time.time() > deadline - MARGIN_S:
        why = f"signal {told[0]}" if told else "its time is nearly over"
        write(saved, done)
        write(state, {"state": "checkpointed", "progress": done, "cause": why})
        sys.exit(75)
    if done % 10 == 0:  # where the node dies, nine seconds are lost
        write(saved, done)
        write(state, {"state": "running", "progress": done, "cause": "a checkpoint is there"})
write(output, {"counted": done})
