"""Which cores and devices processes get, on machines that are folders of /sys as the kernel writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalestudy.launch.binding import deal
from scalestudy.measure.placement import Cpu, cpu_list, near_device, topology
from scalestudy.results.warnings import placement_warnings
from scalestudy.training.report import Report

# Two sockets of two cores of two threads each, numbered as Linux does: first threads of all cores, then the second ones.
TWO_SOCKETS = [Cpu(0, 0, 0), Cpu(4, 0, 0), Cpu(1, 1, 0), Cpu(5, 1, 0),
               Cpu(2, 0, 1), Cpu(6, 0, 1), Cpu(3, 1, 1), Cpu(7, 1, 1)]  # fmt: skip
NO_DEVICES: list[list[int]] = [[], [], [], []]


def test_each_process_bound_by_core_has_whole_cores_of_its_own() -> None:
    assert deal("core", TWO_SOCKETS, NO_DEVICES, 1) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_process_of_two_threads_has_two_cores_and_cores_are_dealt_again_when_all_are_gone() -> None:
    assert deal("core", TWO_SOCKETS, NO_DEVICES[:3], 2) == [[0, 1, 4, 5], [2, 3, 6, 7], [0, 1, 4, 5]]


def test_cores_on_the_devices_socket_are_dealt_first() -> None:
    assert deal("core", TWO_SOCKETS, [[2, 3, 6, 7], [0, 1, 4, 5]], 1) == [[2, 6], [0, 4]]


def test_processes_bound_by_socket_go_round_the_sockets_or_to_their_devices() -> None:
    assert deal("socket", TWO_SOCKETS, NO_DEVICES[:3], 1) == [[0, 1, 4, 5], [2, 3, 6, 7], [0, 1, 4, 5]]
    assert deal("socket", TWO_SOCKETS, [[2, 3, 6, 7], [2, 3, 6, 7]], 1) == [[2, 3, 6, 7]] * 2


def test_the_kernels_lists_and_topology_are_read(tmp_path: Path) -> None:
    for number, (core, socket) in enumerate([(0, 1), (1, 0), (0, 0)]):
        folder = tmp_path / f"devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{core}\n")
        (folder / "physical_package_id").write_text(f"{socket}\n")
    assert topology([0, 1, 2], tmp_path) == [Cpu(2, 0, 0), Cpu(1, 1, 0), Cpu(0, 0, 1)]
    assert topology([3], tmp_path) == [Cpu(3, 3, 0)]
    assert cpu_list("0-2,8\n") == [0, 1, 2, 8]


@pytest.mark.parametrize(("numa_node", "near"), [("1", [14, 15, 16]), ("-1", [])])
def test_a_devices_socket_is_known_where_the_kernel_knows_it(tmp_path: Path, numa_node: str, near: list[int]) -> None:
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{numa_node}\n")
    (folder / "local_cpulist").write_text("14-16\n")
    assert near_device("0000:3B:00.0", tmp_path) == near
    assert near_device(None, tmp_path) == []


def rank(number: int, cores: list[str], device: str | None = None, device_cpus: list[int] | None = None) -> Report:
    place = {"host": "a", "cores": cores, "device": device, "device_cpus": device_cpus or []}
    return Report(number, affinity=[int(core.partition(":")[2]) for core in cores], placement=place)


@pytest.mark.parametrize(
    ("ranks", "binding", "words"),
    [
        ([rank(0, ["0:0"]), rank(1, ["0:0"])], "none", "2 ranks of 1 thread share 1 core on a"),
        (
            [rank(0, ["0:0", "0:1"]), rank(1, ["0:1"])],
            "core",
            "ranks share cores on a, though launch.binding gives each its own",
        ),
        ([rank(0, ["0:0"], "g"), rank(1, ["0:1"], "g")], "none", "2 ranks share the device g on a"),
        ([rank(0, ["0:0"], "g", [1])], "none", "rank 0 runs outside the socket of its device on a"),
        ([rank(0, ["0:0", "0:1"], "g", [1])], "none", "rank 0 runs partly outside the socket of its device on a"),
    ],
)
def test_a_rank_in_a_bad_place_is_warned_of(ranks: list[Report], binding: str, words: str) -> None:
    assert words in "\n".join(placement_warnings(ranks, 1, binding))
