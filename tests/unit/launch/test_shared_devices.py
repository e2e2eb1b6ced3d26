"""More ranks than devices: refused, unless a study asks for it; then they share them over gloo, and the run is marked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from scalestudy.errors import Skipped, UserError
from scalestudy.hardware import Accelerators, Device
from scalestudy.launch.ranks import Ranks
from scalestudy.launch.resolve import resolve
from scalestudy.results.result import is_oversubscribed
from scalestudy.spec.config import Site
from scalestudy.spec.machine import Machine
from scalestudy.spec.run import RunSpec
from scalestudy.training import world
from tests.unit.test_training import job

EIGHT_CORES = Machine.model_validate({"cores_per_node": 8})


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one stand-in GPU."""
    found = Accelerators("cuda", (Device("Stand-in GPU", 1 << 34, "0000:10:00.0"),), "a stand-in")
    monkeypatch.setattr("scalestudy.launch.resolve.accelerators", lambda: found)
    monkeypatch.setattr("scalestudy.hardware.accelerators", lambda: found)


def run(
    strategy: str | dict[str, Any] = "allreduce", oversubscribe: bool = True, ranks: int = 2, **more: Any
) -> RunSpec:
    plain = {"ranks": ranks, "strategy": strategy, "batch": {"per_rank": 8}, "launch": {"oversubscribe": oversubscribe}}
    return RunSpec.model_validate({**plain, **more})


@pytest.mark.usefixtures("one_gpu")
def test_two_ranks_on_one_gpu_are_refused_and_the_reason_names_the_key() -> None:
    with pytest.raises(Skipped, match=r"2 ranks need as many GPUs; this machine has 1; `launch\.oversubscribe: true`"):
        resolve(run(oversubscribe=False), EIGHT_CORES, Site())


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("strategy", ["allreduce", "ring", "parameter_server", "async_parameter_server"])
def test_ranks_that_may_share_have_one_node_and_their_share_of_its_cores(strategy: str) -> None:
    resolved, where = resolve(run(strategy), EIGHT_CORES, Site())
    assert (resolved.device, resolved.devices, resolved.nodes, resolved.ranks_per_node) == ("cuda", 1, 1, 2)
    assert resolved.threads_per_rank == 4
    assert len(where.hosts) == 1


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize("strategy", ["halving_doubling", "hierarchical", "zero1", "fsdp", "pipeline"])
def test_an_exchange_that_gloo_does_not_have_on_gpus_is_refused(strategy: str) -> None:
    with pytest.raises(Skipped, match="NCCL refuses two ranks on one GPU, and gloo has not all"):
        resolve(run(strategy), EIGHT_CORES, Site())


@pytest.mark.usefixtures("one_gpu")
def test_a_torch_for_cpus_alone_is_said_and_the_cpu_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(Skipped, match=r"has 1 GPU, and torch .* is built for the CPU alone") as caught:
        resolve(run(ranks=1), EIGHT_CORES, Site())
    assert "set `device: cpu`" in str(caught.value)
    assert resolve(run(ranks=1, device="cpu"), EIGHT_CORES, Site())[0].device == "cpu"


@pytest.mark.parametrize(
    ("ranks", "devices", "hosts", "shared"),
    [
        (2, 1, ("a",), True),
        (4, 2, ("a", "b"), False),
        (6, 2, ("a", "b"), True),
    ],
)
def test_ranks_share_where_a_machine_has_fewer_devices(
    ranks: int, devices: int, hosts: tuple[str, ...], shared: bool
) -> None:
    made = job(run(ranks=ranks), hosts=hosts, device="cuda", devices=devices)
    assert made.shares_devices is shared
    assert is_oversubscribed(made) is shared


@pytest.mark.parametrize(("servers", "shared"), [(2, False), (3, True)])
def test_servers_compute_on_cores_of_their_own(servers: int, shared: bool) -> None:
    spec = run({"name": "parameter_server", "servers": servers}, ranks=2, device="cpu")
    assert is_oversubscribed(job(spec, threads_per_rank=2, cores=8)) is shared


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_logical_nodes_share_the_cores_of_their_host(nodes: int) -> None:
    made = job(run("ring", ranks=4))
    logical = replace(made, resolved=replace(made.resolved, nodes=nodes, ranks_per_node=4 // nodes))
    assert is_oversubscribed(logical)
    assert not is_oversubscribed(job(run("ring", ranks=4), hosts=("a", "b")))


@pytest.mark.usefixtures("one_gpu")
def test_a_shared_device_is_measured_once() -> None:
    assert Ranks(job(run(ranks=3), device="cuda", devices=1), [0], group=0).devices() == ["0000:10:00.0"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("The NVIDIA driver on your system is too old (found version 12020).\nPlease update", UserError),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", UserError),
        ("CUDA error: out of memory", RuntimeError),
    ],
)
def test_a_device_that_torch_cannot_use_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, said: str, kind: type[Exception]
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    with pytest.raises(kind) as caught:
        world.join(job(run(ranks=1, strategy="single"), device="cuda", devices=1), 0)
    if isinstance(caught.value, UserError):
        assert said.split("\n", maxsplit=1)[0] in caught.value.what
        assert "set `device: cpu`" in caught.value.remedy
