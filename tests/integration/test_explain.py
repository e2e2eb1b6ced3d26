"""Scripts that know nothing of `scalestudy explain`, under its hooks; test_tutorial.py has it explain one."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from scalestudy.program.observe import Removal, observe
from tests.integration import fork_server

BEGIN = """
    import os, socket, time, torch
    import torch.distributed as dist
    torch.set_num_threads(1)

    def step(model, optimiser, x, y):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad(); loss.backward(); optimiser.step()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rank = int(os.fork() == 0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = torch.nn.Linear(16, 4)
"""
"""Two ranks that share one import of torch."""
TWO_RANKS = """
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        if rank == 1: time.sleep(0.05)
        step(model, optimiser, torch.randn(4, 16), torch.randint(4, (4,)))
"""
SHARDED = """
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        if rank == 1: time.sleep(0.05)
        loss = model(torch.randn(4, 16)).square().mean()
        optimiser.zero_grad(); loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
"""


@pytest.mark.parametrize(
    "text", [pytest.param(TWO_RANKS, id="DDP"), pytest.param(SHARDED, id="FSDP2", marks=pytest.mark.soak)]
)
def test_ranks_go_each_at_its_own_pace_in_the_window_without_exchange(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(text), encoding="utf-8")
    command = [sys.executable, str(script)]
    together, alone = observe(command, Removal("whole"), 8, 6, 120.0, tmp_path / "run", (True, False))
    assert together.failure == ""
    waiting, slow = (rank.step_s for rank in together.ranks)
    assert min(waiting, slow) > 0.04
    free, slow = (rank.step_s for rank in alone.ranks)
    assert slow - free > 0.03


def test_a_script_without_steps_fails_with_its_own_last_words(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no such dataset')", encoding="utf-8")
    command = [fork_server.commands() / "scalestudy", "explain", "--", sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "status 1" in done.stderr and "no such dataset" in done.stderr
