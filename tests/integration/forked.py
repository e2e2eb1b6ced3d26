"""Ranks for tests: processes forked from one that has imported what they need, once for all tests."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

PRELOAD = ["tests.integration.no_collection", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "torch.distributed.fsdp",
           "torch.distributed.tensor", "torch.export._trace", "torchvision", "pytest", "scalestudy.strategies.build",
           "scalestudy.strategies.fsdp", "scalestudy.strategies.pipeline", "scalestudy.training.trainer"]  # fmt: skip
"""The fork server heeds the first list that it is given, so that there is one for all tests."""
LIMIT_S = 240.0


def on_processes(
    count: int,
    folder: Path,
    target: Callable[..., Any],
    *arguments: Any,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What `target(index, *arguments)` returned in each of `count` processes, which leave it in `folder`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    processes: list[BaseProcess] = [
        context.Process(target=_process_main, args=(index, folder, target, arguments)) for index in range(count)
    ]
    try:
        for process in processes:
            process.start()
        meanwhile()
        deadline = time.monotonic() + LIMIT_S
        while any(process.is_alive() for process in processes) and not any(process.exitcode for process in processes):
            assert time.monotonic() < deadline, "the processes hang"
            time.sleep(0.02)
        assert [process.exitcode for process in processes] == [0] * count
        return [torch.load(folder / f"{index}.pt") for index in range(count)]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def _process_main(index: int, folder: Path, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # A collection of all that the fork server has imported would copy it page by page, for half a second.
    gc.freeze()
    torch.set_num_threads(1)
    if "lo" in [name for _, name in socket.if_nameindex()]:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.save(target(index, *arguments), folder / f"{index}.pt")
