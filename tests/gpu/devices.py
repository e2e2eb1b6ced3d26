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

from tests.gpu.checks import _matrices
from tests.gpu.suite import NotHere, Suite, Values, synchronise
from tests.gpu.tries import CALL, ROOT, environment, scalestudy, tried, valid


def nccl_works_with_one_rank(suite: Suite) -> Values:
    """DistributedDataParallel over NCCL on one GPU; on a CPU over gloo."""
    result = tried(
        suite, "nccl", "model=small_cnn", "strategy=allreduce", "ranks=1", f"train.epochs={suite.size(12, 1)}"
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
            f"train.epochs={suite.size(4, 1)}",
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
    from scalestudy.cluster.probe import probe

    found = probe(suite.folder("doctor"), "no token")
    devices = found["torch"].get("devices")
    assert devices == (0 if suite.dry else torch.cuda.device_count()), found["torch"]
    assert suite.dry or found["torch"]["device_name"] == torch.cuda.get_device_name(0)
    return {"devices": devices, "nvidia": found["nvidia"] or "no nvidia-smi", "cores": found["cores"]}


def visible_devices_are_counted_as_cuda_does(suite: Suite) -> Values:
    """`CUDA_VISIBLE_DEVICES` as indices, UUID, empty and -1."""
    suite.need_gpu("CUDA's own count")
    uuid = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    first = re.search(r"GPU-[0-9a-f-]+", uuid)
    forms = ["0", "", "-1", "0,99", *([first[0]] if first else [])]
    code = (
        "import torch; from scalestudy.hardware import accelerators as a; print(a().count, torch.cuda.device_count())"
    )
    found: Values = {}
    for form in forms:
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(CUDA_VISIBLE_DEVICES=form),
                              capture_output=True, text=True, check=True)  # fmt: skip
        found[form or "empty"] = done.stdout.strip()
    wrong = {form: text for form, text in found.items() if len(set(text.split())) > 1}
    assert not wrong, f"ours and CUDA's: {wrong}"
    return found


def a_batch_that_does_not_fit_says_so(suite: Suite) -> Values:
    """Out of memory is a skipped run with a reason, not a crash."""
    suite.need_gpu("its memory as a limit")
    result = tried(suite, "too-large", "model=resnet50", "batch.per_rank=40000", "measure.steps=2", "measure.warmup_steps=0",
                   "data={source: synthetic, samples: 40000, shape: [3, 224, 224]}")  # fmt: skip
    assert result["status"] == "skipped", f"{result['status']}: {result['reason']}"
    assert "fit" in result["reason"], result["reason"]
    return {"reason": result["reason"]}


def the_largest_batch_is_the_largest(suite: Suite) -> Values:
    """What `largest-batch` finds trains; 5 % more does not."""
    suite.need_gpu("its memory as a limit")
    settings = ("model=resnet50", "data={source: synthetic, samples: 4096, shape: [3, 224, 224]}")
    done = scalestudy("largest-batch", *settings)
    assert done.returncode == 0, done.stdout[-1500:]
    found = int(done.stdout.strip().split("\n")[-1].rpartition(":")[2].replace(",", ""))
    steps = ("measure.steps=2", "measure.warmup_steps=1", "train.evaluate_every_epochs=0")
    fits = {}
    for batch in (found, round(1.05 * found)):
        data = f"data={{source: synthetic, samples: {3 * batch}, shape: [3, 224, 224]}}"
        out = suite.folder(f"largest-{batch}")
        words = ("try", "model=resnet50", data, f"batch.per_rank={batch}", "device=cuda", *steps, "--out", str(out))
        scalestudy(*words)
        file = out / "result.json"
        fits[batch] = file.exists() and '"status": "skipped"' not in file.read_text()
        shutil.rmtree(out, ignore_errors=True)
    assert list(fits.values()) == [True, False], f"found {found}; fits: {fits}"
    return {"largest_batch": found}


def a_killed_rank_frees_the_device(suite: Suite) -> Values:
    """After SIGKILL of a rank the run ends with its name, and its memory is free again."""
    suite.need_gpu("memory that is held")
    free_before = torch.cuda.mem_get_info()[0]
    out = suite.folder("killed")
    words = ["try", "device=cuda", "model=resnet50", "batch.per_rank=64", "train.epochs=1000", "--out", str(out),
             "data={source: synthetic, samples: 4096, shape: [3, 224, 224]}"]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", CALL, *words], cwd=ROOT, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    try:
        pids = _pids_on_device(process.pid, 90)
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
    from scalestudy.hardware import bus_ids
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
    steps, side, samples = suite.size(200, 20), suite.size(96, 8), suite.size(65536, 2048)
    data = f"data={{source: synthetic, samples: {samples}, shape: [3, {side}, {side}]}}"
    result = tried(suite, "energy", "model=resnet50" if not suite.dry else "model=small_cnn", data, "batch.per_rank=64",
                   "loader.mode=synthetic", f"measure.steps={steps}", "train.evaluate_every_epochs=0")  # fmt: skip
    metrics = valid(result)
    names = ("j_per_sample", "device_utilisation", "device_power_w")
    assert all((metrics[name] is None) == suite.dry for name in names), {name: metrics[name] for name in names}
    return {name: metrics[name] if metrics[name] is not None else "none on a CPU" for name in names}


def modes_of_the_device_are_said(suite: Suite) -> Values:
    """MIG and compute mode, which are never changed, and whether NVML answers."""
    suite.need_gpu("nvidia-smi")
    asked = "mig.mode.current,compute_mode,persistence_mode,power.draw,clocks.sm,clocks_event_reasons.active"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(asked.split(","), map(str.strip, done.stdout.split(",")), strict=False))


ALL = (
    nccl_works_with_one_rank,
    more_ranks_than_devices_are_refused_in_a_sentence,
    two_ranks_share_one_gpu_over_gloo,
    the_machine_file_matches_the_data_sheet,
    the_doctor_reports_this_machine,
    visible_devices_are_counted_as_cuda_does,
    a_batch_that_does_not_fit_says_so,
    the_largest_batch_is_the_largest,
    a_killed_rank_frees_the_device,
    nvml_reads_the_device_at_the_stated_rate,
    a_run_has_energy_per_sample,
    modes_of_the_device_are_said,
)
