"""Hooks in a user's PyTorch script: time its optimiser steps, with one part of a step taken away.

The request:

    out      folder for one record per rank, rank.<rank>.json
    warmup   optimiser steps before the window
    steps    optimiser steps of the window; null: the window is the rest of the script
    leave    whether the process ends after the window
    trace    whether each step gets a line in steps.<rank>.jsonl: time of its end, samples, wait for data
    remove   parts to take away: loading, copies, exchange
    workers  factor on each DataLoader's num_workers (a worker where there was none)
    stop_status  exit status that leaves a file stopped.<process>
    pin      pinned host memory in each DataLoader
"""
