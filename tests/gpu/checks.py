"""Correctness on a GPU: clocks, equal weights, the loader's copies, devices, memory."""

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
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from tests.gpu.suite import NotHere, Suite, Values, paired, seconds_of, synchronise
from tests.gpu.tries import CALL, DETERMINISTIC, ROOT, environment, scalestudy, tried, valid

SMALL = ("model=small_cnn", "train.epochs=6", "optimiser.learning_rate=0.05", "keep=weights")


# Clocks


def _timed_steps(suite: Suite, steps: int, work: Any) -> tuple[np.ndarray, float]:
    """float64 [steps, 7] as the trainer's timer has them, and the wall time of all steps."""
    from scalestudy.measure.timers import StepTimer

    timer = StepTimer(suite.device)
    synchronise(suite.device)
    begin = time.perf_counter()
    for _ in range(steps):
        timer.begin()
        for phase in ("data", "convert", "forward"):
            timer.mark(phase)
        work()
        for phase in ("backward", "exchange"):
            timer.mark(phase)
        timer.end()
    synchronise(suite.device)
    return timer.seconds(), time.perf_counter() - begin


def _matrices(suite: Suite, side: int) -> Any:
    x = torch.randn(side, side, device=suite.device)
    return lambda: x @ x


def step_times_add_up_to_wall_time(suite: Suite) -> Values:
    """2,000 steps: the parts of all steps against one clock on the wall, within 1 %."""
    work = _matrices(suite, suite.size(4096, 256))
    work()
    marks, wall_s = _timed_steps(suite, suite.size(2000, 50), work)
    ratio = float(marks[-1, -1] - marks[0, 0]) / wall_s
    inside = float(np.diff(marks, axis=1).sum()) / wall_s
    assert suite.dry or 0.99 <= ratio <= 1.01, f"events span {ratio:.4f} of the wall time"
    assert suite.dry or 0.99 <= inside <= 1.01, f"the parts of the steps sum to {inside:.4f} of the wall time"
    assert (np.diff(marks.ravel()) >= 0).all(), "a mark lies before the one that it follows"
    return {"span_over_wall": ratio, "parts_over_wall": inside}


def step_times_agree_with_the_profiler(suite: Suite) -> Values:
    """The compute phase against the durations of its kernels, within 1 %, where kernels are long."""
    suite.need_gpu("kernel times of torch.profiler")
    work = _matrices(suite, 8192)
    work()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
        marks, _ = _timed_steps(suite, 50, work)
    kernels_s = sum(event.self_device_time_total for event in trace.key_averages()) / 1e6
    compute_s = float(np.diff(marks, axis=1)[:, 3].sum())
    assert abs(compute_s / kernels_s - 1) <= 0.01, f"compute {compute_s:.5f} s, kernels {kernels_s:.5f} s"
    return {"compute_over_kernels": compute_s / kernels_s}


def measuring_costs_at_most_one_percent(suite: Suite) -> Values:
    """Steps of some milliseconds with the timer and without."""
    work, steps = _matrices(suite, suite.size(4096, 512)), suite.size(300, 20)

    def plain() -> float:
        return seconds_of(suite.device, lambda: [work() for _ in range(steps)])

    ratio, low, high = paired(suite, lambda: _timed_steps(suite, steps, work)[1], plain)
    assert suite.dry or low <= 1.01, f"with the timer {ratio:.4f} [{low:.4f} .. {high:.4f}] of the time without"
    return {"with_over_without": ratio, "low": low, "high": high}


# The same weights


def _weights(suite: Suite, name: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(suite.folder(name) / "weights.safetensors")


def _largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one if one[name].numel())


def two_runs_have_the_same_weights_bit_for_bit(suite: Suite) -> Values:
    """With torch's deterministic algorithms."""
    for name in ("twice-a", "twice-b"):
        valid(tried(suite, name, *SMALL, before=DETERMINISTIC))
    difference = _largest_difference(_weights(suite, "twice-a"), _weights(suite, "twice-b"))
    assert difference == 0.0, f"weights differ by up to {difference:g}"
    return {"largest_difference": difference}


def a_run_that_was_stopped_ends_with_the_same_weights(suite: Suite) -> Values:
    """Stopped by a file after some steps, resumed, and compared bit for bit with one that was not."""
    settings = (*SMALL, "train.epochs=12", "checkpoint.every_steps=40")
    valid(tried(suite, "whole", *settings, before=DETERMINISTIC))
    out = suite.folder("stopped")
    words = ["try", f"device={suite.device.type}", *settings, "--out", str(out)]
    process = subprocess.Popen([sys.executable, "-c", DETERMINISTIC + CALL, *words], cwd=ROOT, env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    end = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end and not list(out.glob("checkpoint/step-*")):
        time.sleep(0.02)
    (out / "stop").touch()
    output, _ = process.communicate(timeout=120)
    stopped = process.returncode == 75
    result = tried(suite, "stopped", *settings, before=DETERMINISTIC)
    valid(result)
    difference = _largest_difference(_weights(suite, "whole"), _weights(suite, "stopped"))
    assert stopped, f"the run ended before it could be stopped (status {process.returncode}): {output[-300:]}"
    assert difference == 0.0, f"weights differ by up to {difference:g}"
    return {"largest_difference": difference, "attempts": len(result["links"])}


def float64_agrees_with_the_cpu(suite: Suite) -> Values:
    """20 steps in float64 on both, to 1e-10."""
    settings = ("model=small_cnn", "dtype=float64", "measure.warmup_steps=0", "measure.steps=20", "keep=weights")
    tried(suite, "double-cpu", *settings, "device=cpu")
    tried(suite, "double-here", *settings)
    difference = _largest_difference(_weights(suite, "double-cpu"), _weights(suite, "double-here"))
    assert difference <= 1e-10, f"weights differ by up to {difference:g}"
    return {"largest_difference": difference}


def mixed_precision_learns_as_well(suite: Suite) -> Values:
    """Digits in float32, bfloat16 and float16 with loss scaling: accuracies within 0.03 of each other."""
    accuracies: Values = {}
    types = ("bfloat16",) if suite.dry else ("bfloat16", "float16")
    for name in ("float32", *types):
        settings = [] if name == "float32" else [f"autocast={name}"]
        result = tried(
            suite, f"learns-{name}", "model=small_cnn", "train.epochs=8", "optimiser.learning_rate=0.05", *settings
        )
        accuracies[name] = valid(result)["accuracy"]
    assert min(accuracies.values()) > 0.8, f"{accuracies}"
    assert max(accuracies.values()) - min(accuracies.values()) <= 0.03, f"{accuracies}"
    return accuracies


def _losses(suite: Suite, name: str) -> np.ndarray:
    import pandas as pd

    return pd.read_parquet(suite.folder(name) / "steps.parquet")["loss"].to_numpy()


def channels_last_and_compile_learn_alike(suite: Suite) -> Values:
    """The loss curve of 40 steps, against the plain one: the largest difference relative to the first loss."""
    data = "data={source: synthetic, samples: 512, shape: [3, 64, 64]}"
    common = (data, "model=resnet18", "batch.per_rank=32", "measure.warmup_steps=2", "measure.steps=38", "train.epochs=9",
              "train.evaluate_every_epochs=0", "optimiser.learning_rate=0.01")  # fmt: skip
    common = common if not suite.dry else (*common, "measure.steps=4")
    tried(suite, "curve-plain", *common)
    plain = _losses(suite, "curve-plain")
    found: Values = {}
    forms = {"channels_last": "memory_format=channels_last"} | ({} if suite.dry else {"compile": "compile=true"})
    for name, setting in forms.items():
        tried(suite, f"curve-{name}", *common, setting)
        found[name] = float(np.abs(_losses(suite, f"curve-{name}") - plain).max() / plain[0])
    assert max(found.values()) <= 0.05, f"{found}"
    return found


# The loader


def _pictures(suite: Suite, samples: int, side: int = 256) -> Path:
    """A prepared dataset of made JPEGs; its manifest."""
    from pydantic import TypeAdapter

    from scalestudy.data.prepare.datasets import prepare
    from scalestudy.spec.config import Site
    from scalestudy.spec.run import Data

    plain = {"source": "synthetic_jpeg", "samples": samples, "width": side + 64, "height": side, "mean_kib": 24}
    manifest = suite.folder(f"pictures-{samples}-{side}") / "manifest.json"
    prepare(TypeAdapter(Data).validate_python(plain), manifest, None, Site())
    return manifest


def _loader(suite: Suite, manifest: Path, batch: int, **options: Any) -> Any:
    from scalestudy.data.load.dataset import open_dataset
    from scalestudy.data.load.loader import Loader
    from scalestudy.spec.run import Loader as LoaderSpec

    spec = LoaderSpec(workers=suite.size(8, 1), augment="crop_flip", **options)
    dataset = open_dataset(manifest, "train", spec)
    order = np.arange(dataset.samples)
    plan = [(0, order[i : i + batch]) for i in range(0, len(order) - batch + 1, batch)]
    return Loader(dataset, plan, spec, seed=1)


def batches_lie_in_pinned_memory(suite: Suite) -> Values:
    """What `loader.pin_memory` promises."""
    suite.need_gpu("page-locked memory")
    torch.zeros(1, device=suite.device)
    with contextlib.closing(_loader(suite, _pictures(suite, 256), 32)) as loader:
        pinned = [bool(x.is_pinned()) for x, _ in loader]
    assert pinned, "the loader gave no batch"
    assert all(pinned), f"{pinned.count(False)} of {len(pinned)} batches are pageable"
    return {"batches": len(pinned)}


def no_batch_is_overwritten_while_it_is_copied(suite: Suite) -> Values:
    """A consumer whose queue is always full sees the pixels that a loader without a GPU shows."""
    from scalestudy.data.load.loader import on_device

    manifest, wrong, count = _pictures(suite, suite.size(2048, 64)), 0, 0
    work = _matrices(suite, suite.size(4096, 64))
    with contextlib.closing(_loader(suite, manifest, 32)) as loader:
        here = []
        for x, _ in on_device(loader, suite.device):
            for _ in range(suite.size(8, 1)):
                work()  # the device is far behind
            here.append(x.clone())
    with contextlib.closing(_loader(suite, manifest, 32, pin_memory=False)) as loader:
        for seen, (x, _) in zip(here, loader, strict=True):
            wrong += not torch.equal(seen.cpu(), x)
            count += 1
    assert wrong == 0, f"{wrong} of {count} batches differ from what was decoded"
    return {"batches": count}


def copies_are_hidden_behind_compute(suite: Suite) -> Values:
    """At least 95 % of the time of copies to the device runs while a kernel computes, where compute takes longer."""
    suite.need_gpu("copies to a device")
    from scalestudy.data.load.loader import on_device

    work = _matrices(suite, 8192)
    with contextlib.closing(_loader(suite, _pictures(suite, 2048), 64)) as loader:
        stream = iter(on_device(loader, suite.device))
        next(stream)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
            for _ in range(20):
                next(stream)
                for _ in range(30):
                    work()
            synchronise(suite.device)
    events = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    copies = [(e.time_range.start, e.time_range.end) for e in events if "HtoD" in e.name]
    kernels = sorted((e.time_range.start, e.time_range.end) for e in events if "Memcpy" not in e.name)
    assert copies, "the trace has no copy to the device"
    hidden = sum(_overlap(copy, kernels) for copy in copies) / sum(end - begin for begin, end in copies)
    assert hidden >= 0.95, f"{hidden:.1%} of the time of {len(copies)} copies is hidden"
    return {"hidden": hidden, "copies": len(copies)}


def _overlap(span: tuple[float, float], others: list[tuple[float, float]]) -> float:
    """How much of a span the union of sorted others covers."""
    covered, reached = 0.0, span[0]
    for begin, end in others:
        last = min(end, span[1])
        if last > max(begin, reached):
            covered += last - max(begin, reached)
            reached = last
    return covered


def normalising_on_the_device_equals_the_cpu(suite: Suite) -> Values:
    """To one unit of an 8-bit pixel."""
    from scalestudy.data.load.normalise import normalise

    x = torch.randint(0, 256, (16, 3, 96, 96), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    on_cpu = normalise(x, torch.float32, "cpu").clone()
    here = normalise(x.to(suite.device), torch.float32, suite.device).cpu()
    difference = float((on_cpu - here).abs().max())
    assert difference <= 1 / 255, f"values differ by up to {difference:g}"
    return {"largest_difference": difference}


# Devices and memory


def nccl_works_with_one_rank(suite: Suite) -> Values:
    """DistributedDataParallel over NCCL on one GPU; on a CPU over gloo."""
    result = tried(suite, "nccl", "model=small_cnn", "strategy=allreduce", "ranks=1", "train.epochs=12")
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
            "train.epochs=4",
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
    steps = suite.size(200, 20)
    data = "data={source: synthetic, samples: 65536, shape: [3, 96, 96]}"
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
    step_times_add_up_to_wall_time,
    step_times_agree_with_the_profiler,
    measuring_costs_at_most_one_percent,
    two_runs_have_the_same_weights_bit_for_bit,
    a_run_that_was_stopped_ends_with_the_same_weights,
    float64_agrees_with_the_cpu,
    mixed_precision_learns_as_well,
    channels_last_and_compile_learn_alike,
    batches_lie_in_pinned_memory,
    no_batch_is_overwritten_while_it_is_copied,
    copies_are_hidden_behind_compute,
    normalising_on_the_device_equals_the_cpu,
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
