"""`scalestudy explain` on scripts that know nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

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


def explained(script, *options):
    """What the command says of a script."""
    command = [fork_server.commands() / "scalestudy", "explain", *options, "--", sys.executable, script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "text", [pytest.param(TWO_RANKS, id="DDP"), pytest.param(SHARDED, id="FSDP2", marks=pytest.mark.soak)]
)
def test_a_slow_rank_is_named(tmp_path, text):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(BEGIN) + textwrap.dedent(text), encoding="utf-8")
    done = explained(script, "--steps", "8", "--minutes", "0.05", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ranks"], found["slow_rank"]) == (2, 1)
    assert sum(each["seconds"] for each in found["parts"] if each["name"] == "straggler") > 0.03
    assert [each["name"] for each in found["not_examined"]] == ["loading"]


def test_a_script_without_steps_fails_with_its_own_last_words(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no such dataset')", encoding="utf-8")
    done = explained(script)
    assert done.returncode == 2
    assert "status 1" in done.stderr and "no such dataset" in done.stderr
