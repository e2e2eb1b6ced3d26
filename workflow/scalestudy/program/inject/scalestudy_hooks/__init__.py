"""Hooks in a user's PyTorch script: time its optimiser steps, with parts of a step taken away.

The request:

    out      folder for one record per rank, rank.<rank>.json
    warmup   optimiser steps before the first window
    steps    optimiser steps of a window; null: the window is the rest of the script
    exchange for each window, whether ranks exchange in it; one where they do, if it is left out
    leave    whether the process ends after its last window
    trace    whether each step gets a line in steps.<rank>.jsonl: time of its end, samples, wait for data;
             the first line of a process says that it begins
    remove   parts to take away: loading, copies
    workers  factor on each DataLoader's num_workers (a worker where there was none)
    stop_status  exit status that leaves a file stopped.<process>
    pin      pinned host memory in each DataLoader
"""
