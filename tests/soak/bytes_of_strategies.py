"""Count the bytes that a step of each strategy sends, all ranks and servers together, beside those of its algorithm. As root.

    python -m tests.soak.bytes_of_strategies

Trainings of 8 and of 40 steps run in a network namespace of their own, whose loopback carries nothing else: the kernel's
count of its bytes, of the longer less the shorter, is 32 steps. Headers are in it, 0.1 %, and the messages in which ranks agree.
A whole program is timed, or the pairs of steps that measure an overlapped exchange would be in it, as many as there is time for.
The unit is a buffer of all gradients. Fails where one is off by more than 2 %.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.tries import begin, made, weights

CLONE_NEWNET = 0x40000000
"""Linux, sched.h."""
EPOCHS, STEPS = (2, 10), 32
BATCH, HIDDEN, SAMPLE = 32, 1024, 3 * 16 * 16
TRAINING = (
    f"model={{name: mlp, layers: 4, hidden: {HIDDEN}}}", "data={source: synthetic, samples: 128, shape: [3, 16, 16]}",
    f"batch={{global: {BATCH}}}", "measure={warmup_steps: 0, whole_program: true}", "optimiser.learning_rate=0.001",
)  # fmt: skip
OVER_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "HOROVOD_CPU_OPERATIONS": "gloo"}  # fmt: skip
TWO, FOUR = ("ranks=2",), ("ranks=4",)
NODES = ("ranks=4", "nodes=2")
CASES: list[tuple[str, tuple[str, ...], float, str]] = [
    ("allreduce", TWO, 2, "2 (p-1), p = 2"),
    ("allreduce", FOUR, 6, "2 (p-1), p = 4"),
    ("{name: allreduce, compression: fp16}", TWO, 1, "half of allreduce's"),
    ("ring", FOUR, 6, "2 (p-1)"),
    ("{name: ring, schedule: overlapped}", FOUR, 6, "2 (p-1)"),
    ("halving_doubling", FOUR, 6, "2 (p-1)"),
    ("hierarchical", NODES, 8.37, "in each of two nodes 2.18 to reduce (gloo alone), 1 to broadcast; 2 between"),
    ("two_dimensional", NODES, 8, "in each of two nodes 2 to scatter, 1 to gather; 2 halves between nodes"),
    ("mpi_allreduce", TWO, 2, "2 (p-1)"),
    ("horovod", FOUR, 6, "2 (p-1)"),
    ("parameter_server", FOUR, 8, "2 p, one server"),
    ("{name: parameter_server, servers: 2}", FOUR, 8, "2 p, over two servers"),
    ("async_parameter_server", FOUR, 8, "2 p"),
    ("zero1", FOUR, 9, "2 (p-1) to scatter, p-1 to gather"),
    ("fsdp", FOUR, 12, "p-1 to gather in forward and in backward; gloo scatters by an all-reduce, 2 (p-1)"),
]
"""Strategy, ranks, buffers that are sent in a step, and where that number comes from."""
PIPELINE = "{name: pipeline, stages: 2, micro_batches: 2}"


def bytes_on_loopback() -> int:
    """Bytes that this namespace's loopback has carried."""
    line = next(line for line in Path("/proc/self/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[9])


def sent_by(strategy: str, ranks: tuple[str, ...], folder: Path) -> tuple[float, int]:
    """Bytes of a step, and bytes of the weights."""
    counted, out = [], folder
    for epochs in EPOCHS:
        out = folder / str(epochs)
        train = f"train={{epochs: {epochs}, evaluate_every_epochs: 0}}"
        before = bytes_on_loopback()
        process = begin(out, *TRAINING, train, f"strategy={strategy}", *ranks, "keep=weights")
        said, _ = process.communicate(timeout=200)
        assert made(process.returncode, said), said
        counted.append(bytes_on_loopback() - before)
    return (counted[1] - counted[0]) / STEPS, sum(map(len, weights(out).values()))


def main() -> None:
    """All strategies; the exit status is 1 where one sends something else."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        sys.exit(f"a network namespace cannot be made: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.environ.update(OVER_TCP)
    right = True
    with tempfile.TemporaryDirectory() as name:
        for number, (strategy, ranks, buffers, why) in enumerate(CASES):
            sent, size = sent_by(strategy, ranks, Path(name) / str(number))
            right &= abs(sent / size / buffers - 1) <= 0.02
            print(f"{strategy:42} {' '.join(ranks):15} {sent / size:6.3f} buffers; {buffers:g}: {why}", flush=True)
        sent, _ = sent_by(PIPELINE, TWO, Path(name) / "pipeline")
        # Activations and their gradients; rank 1 hands its half of the samples to the first stage, rank 0 its labels to the last.
        wanted = 2 * BATCH * HIDDEN * 4 + BATCH // 2 * (SAMPLE * 4 + 8)
        right &= abs(sent / wanted - 1) <= 0.02
        print(
            f"{PIPELINE:42} {' '.join(TWO):15} {sent:,.0f} B; {wanted:,}: activations, their gradients, samples, labels"
        )
    sys.exit(not right)


if __name__ == "__main__":
    main()
