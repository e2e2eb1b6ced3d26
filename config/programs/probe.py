"""What a machine does, part by part: the program of config/studies/probe.yaml.

    python config/programs/probe.py PART [--kib=1024] [--clients=4] ...

A step is one operation: a product, a copy, an exchange, an image, a block or a file. Its step time is that of an operation,
with all clients at work. An option without a value, as in `--kib=`, has its default.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scalestudy import report
from scalestudy.data.io_accounting import IN_MEMORY, uncounted_file_system
from scalestudy.processes import die_with

STRETCH_S = 0.05
"""Least time from one report to the next: long beside the cost of a report, which is a line in a file."""
Options = argparse.Namespace
Operation = Callable[[], Any]


def repeat(operation: Operation, wait: Operation, longest: Callable[[float], float] = float, **amounts: float) -> None:
    """Repeat an operation without end, and report its `amounts` after each stretch; without amounts nothing.

    `wait` returns when the device is idle. Ranks that exchange repeat equally often: of their times, `longest` returns the
    largest.
    """

    def seconds(times: int) -> float:
        begin = time.perf_counter()
        for _ in range(times):
            operation()
        wait()
        return time.perf_counter() - begin

    times = 1
    # The shorter of two: a pause of the machine is no long operation.
    while min(longest(seconds(times)), longest(seconds(times))) < STRETCH_S:
        times *= 2
    for done in itertools.count(times, times):
        seconds(times)
        if amounts:
            report(done, **{name: times * amount for name, amount in amounts.items()})


def device_of(options: Options) -> tuple[Any, Any, Operation]:
    """Return torch, this rank's device, and a function that returns when the device is idle."""
    import torch

    torch.set_num_threads(options.threads)
    has_gpu = torch.cuda.is_available()
    if not has_gpu and (options.device == "cuda" or options.part == "to_device"):
        sys.exit(f"probe {options.part}: torch finds no GPU here")
    if options.device == "cpu" or not has_gpu:
        return torch, torch.device("cpu"), lambda: None
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch, torch.device("cuda", torch.cuda.current_device()), torch.cuda.synchronize


def gemm(options: Options) -> None:
    """Multiply two square matrices: 2 n^3 floating-point operations."""
    torch, device, wait = device_of(options)
    n, dtype = options.size, getattr(torch, options.dtype)
    a, b = (torch.rand(n, n, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    repeat(lambda: torch.mm(a, b, out=product), wait, flops=2 * n**3)


def copy(options: Options) -> None:
    """Copy memory of the device to memory of the device. Bytes are those read and written, as STREAM counts them."""
    torch, device, wait = device_of(options)
    source = torch.ones(options.kib * 1024, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    repeat(lambda: target.copy_(source), wait, bytes=2 * source.nbytes)


def to_device(options: Options) -> None:
    """Copy page-locked memory of the host to a GPU."""
    torch, device, wait = device_of(options)
    source = torch.ones(options.kib * 1024, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    repeat(lambda: target.copy_(source, non_blocking=True), wait, bytes=source.nbytes)


def allreduce(options: Options) -> None:
    """Sum a buffer of float32 over all ranks.

    Bytes are those of the bus bandwidth, 2 (n - 1) / n times the buffer (nccl-tests, doc/PERFORMANCE.md); rank 0 reports them.
    """
    torch, device, wait = device_of(options)
    ranks, dist = int(os.environ.get("WORLD_SIZE", "1")), torch.distributed
    if ranks < 2:
        sys.exit("probe allreduce: one rank exchanges nothing; start two or more")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    buffer = torch.ones(options.kib * 256, device=device)
    dist.all_reduce(buffer)
    if not (buffer == ranks).all():
        sys.exit(f"probe allreduce: a sum of {ranks} ones is {buffer.min().item()} to {buffer.max().item()}")
    buffer.zero_()  # sums of sums would reach infinity

    def longest(seconds: float) -> float:
        found = torch.tensor([seconds], dtype=torch.float64, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    amounts = {"bytes": 2 * (ranks - 1) / ranks * buffer.nbytes} if dist.get_rank() == 0 else {}
    repeat(lambda: dist.all_reduce(buffer), wait, longest, **amounts)


def by_clients(options: Options, work: Callable[[int], Iterator[None]], **amounts: float) -> None:
    """Let client processes do `work` of their numbers without end; report it for all together once all have begun.

    It yields after each operation. The clients have ended on return, and end with this process.
    """
    signal.signal(signal.SIGTERM, _leave)
    context = multiprocessing.get_context("fork")
    counts, done = context.RawArray("Q", options.clients), 0
    shared = (counts, work, os.getpid())
    clients = [context.Process(target=_client, args=(number, *shared)) for number in range(options.clients)]
    try:
        for client in clients:
            client.start()
        while all(client.is_alive() for client in clients):
            time.sleep(STRETCH_S)
            new = sum(counts) - done
            if new and min(counts):
                done += new
                report(done, **{name: new * amount for name, amount in amounts.items()})
        sys.exit(1)  # the client has told why
    finally:
        for client in clients:
            if client.pid is not None:
                client.kill()
                client.join()


def _leave(number: int, _frame: object) -> None:
    """End this process so that it removes what it has made; a second signal changes nothing."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _client(number: int, counts: Any, work: Callable[[int], Iterator[None]], parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(parent)
    try:
        for _ in work(number):
            counts[number] += 1
    except OSError as error:
        sys.exit(f"probe: client {number}: {error}")


def decode(options: Options) -> None:
    """Decode JPEGs of 500 x 375, and crop and resize them to 224, as the loader does for training."""
    from scalestudy.data.catalogue import SyntheticJpeg
    from scalestudy.data.decode import images
    from scalestudy.data.sources.synthetic_jpeg import Maker

    maker = Maker(SyntheticJpeg(source="synthetic_jpeg", samples=8, width=500, height=375))
    coded = [maker.picture("train", number) for number in range(8)]

    def work(number: int) -> Iterator[None]:
        drawn, out = np.random.default_rng(number), np.empty((224, 224, 3), np.uint8)
        for data in itertools.cycle(coded):
            images.show_coded(data, drawn.random(images.DRAWS), True, out, lambda: False)
            yield

    next(work(0))  # loads the decoder's library before there are clients
    by_clients(options, work, samples=1)


def read(options: Options) -> None:
    """Read each client's file block by block in random order; before each pass, drop it from the page cache."""
    if (name := uncounted_file_system(options.folder)) in IN_MEMORY:
        sys.exit(f"probe read: {options.folder} lies in memory ({name}); give --folder on a disk, or set TMPDIR")
    size = options.kib * 1024

    def work(number: int) -> Iterator[None]:
        blocks, buffer = range(max(1, (options.mib << 20) // size)), bytearray(size)
        with tempfile.TemporaryFile(dir=options.folder) as file:
            for _ in blocks:
                file.write(os.urandom(size))  # nothing that a file system could compress
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
            while True:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                for block in random.sample(blocks, len(blocks)):
                    if os.preadv(file.fileno(), [buffer], block * size) != size:
                        raise OSError("a block of the file was not read whole")
                    yield

    by_clients(options, work, bytes=size)


def files(options: Options) -> None:
    """Create a file, write 4 KiB, ask for its size, read it, remove it; a file that is so new need not be on the disk."""
    with tempfile.TemporaryDirectory(prefix="probe-", dir=options.folder) as folder:

        def work(number: int) -> Iterator[None]:
            content = os.urandom(4096)
            for name in itertools.count():
                file = Path(folder, f"{number}-{name}")
                file.write_bytes(content)
                if file.stat().st_size != len(content) or file.read_bytes() != content:
                    raise OSError(f"{file} does not hold what was written")
                file.unlink()
                yield

        by_clients(options, work, samples=1)


PARTS = {part.__name__: part for part in (gemm, copy, to_device, allreduce, decode, read, files)}


def main() -> None:
    """Repeat one part until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="unset: a GPU where torch finds one")
    parser.add_argument("--dtype", choices=["float64", "float32", "bfloat16", "float16"], default="float32")
    numbers = {
        "threads": (1, "of torch on a CPU"),
        "size": (1024, "rows and columns of a matrix"),
        "kib": (1024, "size of a buffer, of a block of a file, or of what is exchanged"),
        "clients": (1, "processes that decode, read or make files"),
        "mib": (128, "size of the file that a client reads"),
    }
    for name, (default, meaning) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning}; default {default}")
    parser.add_argument("--folder", type=Path, default=tempfile.gettempdir(), help="where files lie")
    options = parser.parse_args([word for word in sys.argv[1:] if not word.endswith("=")])
    if wrong := [name for name in numbers if getattr(options, name) < 1]:
        parser.error(f"--{wrong[0]} must be 1 or more")
    try:
        PARTS[options.part](options)
    except (OSError, RuntimeError) as error:
        sys.exit(f"probe {options.part}: {(str(error) or type(error).__name__).splitlines()[0]}")


if __name__ == "__main__":
    main()
