"""Devices on a GPU: how they are counted, shared, filled, freed, described and read by NVML."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from scalestudy.hardware import bus_ids
from scalestudy.nvml import COMPUTE_MODES, MIG, unusual_modes
from tests.gpu.checks import _matrices
from tests.gpu.groups import Group
from tests.gpu.suite import NotHere, Suite, Values, synchronise
from tests.gpu.tries import CALL, ROOT, environment, scalestudy, tried, valid


def nccl_works_with_one_rank(suite: Suite) -> Values:
    """DistributedDataParallel over NCCL on one GPU; on a CPU over gloo."""
    result = tried(
        suite, "nccl", "model=small_cnn", "strategy=allreduce", "ranks=1", f"train.epochs={suite.size(60, 1)}"
    )
    valid(result)
    backend = result["resolved"]["backend"]
    assert backend == ("gloo" if suite.dry else "nccl"), f"the backend is {backend}"
    return {"backend": backend}


def more_ranks_than_devices_are_refused_in_a_sentence(suite: Suite) -> Values:
    """Two ranks on one GPU are skipped, not crashed, and the reason says what is there."""
    suite.need_gpu("as many as there are")
    ranks = torch.cuda.device_count() + 1
    result = tried(suite, "crowded", "model=small_cnn", "strategy=allreduce", f"ranks={ranks}")
    assert result["status"] == "skipped" and "GPU" in result["reason"], f"{result['status']}: {result['reason']}"
    return {"reason": result["reason"]}


def two_ranks_share_one_gpu_over_gloo(suite: Suite) -> Values:
    """Where it is asked for, ranks share a device: tensors of the GPU are exchanged by gloo, and the run is marked."""
    ranks = 2 if suite.dry else torch.cuda.device_count() + 1
    found: Values = {}
    for strategy in ("allreduce", "ring", "parameter_server"):
        settings = (
            "model=small_cnn",
            f"strategy={strategy}",
            f"ranks={ranks}",
            f"train.epochs={suite.size(20, 1)}",
            "launch.oversubscribe=true",
        )
        result = tried(suite, f"shared-{strategy}", *settings)
        found[f"{strategy}_samples_per_s"] = valid(result)["throughput_samples_per_s"]
        assert result["resolved"]["backend"] == "gloo", result["resolved"]
        assert suite.dry or result["oversubscribed"] is True, "the run is not marked oversubscribed"
    if not suite.dry:
        settings = ("model=small_cnn", "strategy=halving_doubling", f"ranks={ranks}", "launch.oversubscribe=true")
        result = tried(suite, "shared-refused", *settings)
        assert result["status"] == "skipped" and "NCCL refuses two ranks on one GPU" in result["reason"], result[
            "reason"
        ]
    return found


def the_machine_file_matches_the_data_sheet(suite: Suite) -> Values:
    """`machine: auto` names this machine, and its file has the peaks of its GPU; without one the CPU is not taken."""
    from scalestudy.errors import UserError
    from scalestudy.hardware import accelerators
    from scalestudy.spec.auto_machine import auto_machine
    from scalestudy.spec.config import read_machine

    folder = suite.folder("machines")
    if suite.dry:
        try:
            raise AssertionError(f"the CPU was taken as machine {auto_machine(folder)}")
        except UserError as error:
            return {"said": str(error).splitlines()[0]}
    os.environ.pop("SCALESTUDY_MACHINE", None)
    name = auto_machine(folder)
    os.environ.pop("SCALESTUDY_MACHINE", None)
    machine = read_machine(name, folder)
    assert machine.devices_per_node == torch.cuda.device_count()
    assert machine.device_name == torch.cuda.get_device_name(0)
    total_gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    assert abs((machine.device_memory_gib or 0) - total_gib) <= 0.05 * total_gib
    return {
        "name": name,
        "source": accelerators().source,
        "bfloat16_tflops": machine.peak_tflops.get("bfloat16", 0.0),
        "peaks_from": machine.sources.get("peak_tflops", "not in the table"),
    }


def the_doctor_reports_this_machine(suite: Suite) -> Values:
    """`scalestudy doctor`'s look at a node, without a scheduler."""
    from scalestudy.cluster.doctor.probe import probe

    found = probe(suite.folder("doctor"), "no token")
    devices = found["torch"].get("devices")
    assert devices == (0 if suite.dry else torch.cuda.device_count()), found["torch"]
    assert suite.dry or found["torch"]["device_name"] == torch.cuda.get_device_name(0)
    return {"devices": devices, "nvidia": found["nvidia"] or "no nvidia-smi", "cores": found["cores"]}


def visible_devices_are_counted_as_cuda_does(suite: Suite) -> Values:
    """`CUDA_VISIBLE_DEVICES` unset, as indices, UUID, empty and -1, against what the CUDA runtime counts itself."""
    suite.need_gpu("CUDA's own count")
    uuid = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    first = re.search(r"GPU-[0-9a-f-]+", uuid)
    forms = [None, "0", "", "-1", "0,99", "99,0", *([first[0], first[0][:12]] if first else [])]
    # Not torch.cuda.device_count(), which asks NVML as we do.
    code = "import torch; from scalestudy.hardware import accelerators as a; print(a().count, torch._C._cuda_getDeviceCount())"
    processes = {}
    for form in forms:
        place = environment() if form is None else environment(CUDA_VISIBLE_DEVICES=form)
        if form is None:
            place.pop("CUDA_VISIBLE_DEVICES", None)
        name = "unset" if form is None else form or "empty"
        processes[name] = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=place, stdout=subprocess.PIPE,
                                           stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    try:
        found: Values = {
            name: process.communicate(timeout=min(90, suite.left_s))[0].strip() for name, process in processes.items()
        }
    finally:
        for process in processes.values():
            process.kill()
    wrong = {form: text for form, text in found.items() if not re.fullmatch(r"(\d+) \1", text)}
    assert not wrong, f"ours and CUDA's: {wrong}"
    return found


PICTURES = "data={{source: synthetic, samples: {samples}, shape: [3, 224, 224]}}"


def a_batch_that_does_not_fit_says_so(suite: Suite) -> Values:
    """Out of memory is a skipped run with a reason, not a crash; the reason has the allocator's peak."""
    suite.need_gpu("its memory as a limit")
    result = tried(suite, "too-large", "model=resnet50", "batch.per_rank=8192", "measure.steps=2", "measure.warmup_steps=0",
                   PICTURES.format(samples=8192), "loader.mode=synthetic", "train.evaluate_every_epochs=0")  # fmt: skip
    assert result["status"] == "skipped", f"{result['status']}: {result['reason']}"
    assert result["reason"].startswith("does not fit: ") and "allocated at the peak" in result["reason"], result[
        "reason"
    ]
    return {"reason": result["reason"]}


def the_largest_batch_is_the_largest(suite: Suite) -> Values:
    """What `largest-batch` finds trains; 5 % more does not."""
    suite.need_gpu("its memory as a limit")
    done = scalestudy(suite, "largest-batch", "model=resnet50", "device=cuda", PICTURES.format(samples=4096))
    assert done.returncode == 0, done.stdout[-1500:]
    found = int(done.stdout.strip().split("\n")[-1].rpartition(":")[2].replace(",", ""))
    steps = ("measure.steps=2", "measure.warmup_steps=1", "train.evaluate_every_epochs=0", "loader.mode=synthetic")
    said = {}
    for batch in (found, round(1.05 * found)):
        name = f"largest-{batch}"
        result = tried(
            suite, name, "model=resnet50", PICTURES.format(samples=3 * batch), f"batch.per_rank={batch}", *steps
        )
        said[batch] = f"{result['status']}: {result['reason']}"
        shutil.rmtree(suite.folder(name) / "data", ignore_errors=True)
    reasons = list(said.values())
    assert not reasons[0].startswith("skipped"), f"found {found}: {said}"
    assert reasons[1].startswith("skipped: does not fit"), f"found {found}: {said}"
    return {"largest_batch": found, "more": reasons[1]}


def a_killed_rank_frees_the_device(suite: Suite) -> Values:
    """After SIGKILL of a rank the run ends with its name, and its memory is free again."""
    suite.need_gpu("memory that is held")
    free_before = torch.cuda.mem_get_info()[0]
    out = suite.folder("killed")
    words = ["try", "device=cuda", "model=resnet50", "batch.per_rank=64", "train.epochs=1000", "--out", str(out),
             "data={source: synthetic, samples: 4096, shape: [3, 224, 224]}"]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", CALL, *words], cwd=ROOT, env=environment(True),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    try:
        pids = _pids_on_device(process.pid, min(90, suite.left_s))
        os.kill(pids[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    for _ in range(50):
        held = free_before - torch.cuda.mem_get_info()[0]
        if held < 64 * 2**20:
            break
        time.sleep(0.2)
    assert process.returncode == 1 and "rank 0" in output, f"status {process.returncode}: {output[-500:]}"
    assert held < 64 * 2**20, f"{held / 2**20:,.0f} MiB are still held"
    return {"held_mib": held / 2**20}


def _pids_on_device(parent: int, patience_s: float) -> list[int]:
    """Descendants of a process that hold the GPU."""
    import psutil

    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        listed = subprocess.run(["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
                                capture_output=True, text=True, check=False).stdout.split()  # fmt: skip
        with contextlib.suppress(psutil.Error):
            below = {child.pid for child in psutil.Process(parent).children(recursive=True)}
            if found := [int(pid) for pid in listed if pid.isdigit() and int(pid) in below]:
                time.sleep(5)
                return found
            # A container may not see host pids in nvidia-smi: the forked rank is the youngest descendant with CUDA mapped.
            holders = [pid for pid in below if "libcuda" in _maps(pid) and "nvidia" in _maps(pid)]
            if holders and time.monotonic() > end - patience_s + 20:
                return [max(holders)]
        time.sleep(0.5)
    raise NotHere("no process of the run was seen on the device")


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return ""


def nvml_reads_the_device_at_the_stated_rate(suite: Suite) -> Values:
    """Utilisation, memory, power, clock, throttling and energy while the device is busy; what is absent is said."""
    from scalestudy.measure.devices import COLUMNS, DeviceMeter, energy_j, mean_of
    from scalestudy.measure.system import INTERVAL_S, Sampler

    absent = DeviceMeter(["ffff:ff:1f.0"])
    absent.close()
    assert absent.said, "a device that is not there is not said"
    if suite.dry:
        return {"said": absent.said}
    sampler, work = Sampler([os.getpid()], os.getpgrp(), bus_ids(1)), _matrices(suite, 8192)
    sampler.start()
    begin = time.perf_counter()
    while time.perf_counter() - begin < 8:
        work()
        synchronise(suite.device)
    end = time.perf_counter()
    sampler.stop()
    assert not sampler.said, sampler.said
    rows = sampler.rows
    assert all(set(COLUMNS) <= row.keys() for row in rows)
    gaps = np.diff([row["clock_s"] for row in rows[:-1]])
    assert gaps.max() <= 1.5 * INTERVAL_S, f"up to {gaps.max():.2f} s between samples"
    utilisation = mean_of(rows, "device_utilisation", begin + 2, end)
    power, joules = mean_of(rows, "device_power_w", begin + 2, end - 1), energy_j(rows, begin + 2, end - 1)
    assert utilisation is not None and utilisation > 0.9, f"a busy device is used {utilisation}"
    assert power and joules, "no power, or no energy"
    mean_w = joules / (end - begin - 3)
    assert abs(mean_w / power - 1) <= 0.1, f"the counter says {mean_w:.0f} W, samples {power:.0f} W"
    return {"utilisation": utilisation, "power_w": power, "counter_w": mean_w, "clock_mhz": rows[-2]["device_clock_mhz"],
            "memory_gib": rows[-2]["device_memory_bytes"] / 2**30, "throttle": rows[-2]["device_throttle"]}  # fmt: skip


def a_run_has_energy_per_sample(suite: Suite) -> Values:
    """The columns `j_per_sample`, `device_utilisation` and `device_power_w` of a run of some seconds."""
    side, window = suite.size(96, 8), "measure.steps=20" if suite.dry else "measure.minutes=0.1"
    data = f"data={{source: synthetic, samples: {suite.size(1 << 20, 2048)}, shape: [3, {side}, {side}]}}"
    result = tried(suite, "energy", "model=resnet50" if not suite.dry else "model=small_cnn", data, "batch.per_rank=64",
                   "loader.mode=synthetic", window, "train.evaluate_every_epochs=0")  # fmt: skip
    metrics = valid(result, measured=True)
    names = ("j_per_sample", "device_utilisation", "device_power_w")
    assert all((metrics[name] is None) == suite.dry for name in names), {name: metrics[name] for name in names}
    return {name: metrics[name] if metrics[name] is not None else "none on a CPU" for name in names}


def modes_of_the_device_are_said(suite: Suite) -> Values:
    """MIG and compute mode as NVML and `nvidia-smi` have them; they are never changed."""
    suite.need_gpu("nvidia-smi")
    asked = "mig.mode.current,compute_mode,persistence_mode,power.limit,clocks.max.sm,clocks_event_reasons.active"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "--id=0"], capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(zip(asked.split(","), map(str.strip, done.stdout.split(",")), strict=False))
    ours = unusual_modes(bus_ids(1))
    assert (MIG in ours) == (told["mig.mode.current"] == "Enabled"), f"{ours}; nvidia-smi: {told}"
    assert any(one in COMPUTE_MODES.values() for one in ours) == (told["compute_mode"] != "Default"), f"{ours}; {told}"
    return {**told, "ours": "; ".join(ours) or "as usual"}


GROUPS = (
    Group("checks", "exchange", (
        nccl_works_with_one_rank,
        more_ranks_than_devices_are_refused_in_a_sentence,
        two_ranks_share_one_gpu_over_gloo,
    )),
    Group("checks", "machine", (
        the_machine_file_matches_the_data_sheet,
        the_doctor_reports_this_machine,
        visible_devices_are_counted_as_cuda_does,
        modes_of_the_device_are_said,
        nvml_reads_the_device_at_the_stated_rate,
        a_run_has_energy_per_sample,
    )),
    Group("checks", "memory", (
        a_batch_that_does_not_fit_says_so,
        a_killed_rank_frees_the_device,
        the_largest_batch_is_the_largest,
    ), 280),
)  # fmt: skip
