"""The columns that a run's row has: keys of its spec, and measurements. Units and meanings are defined here alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from scalestudy.spec.run import RunSpec
    from scalestudy.spec.study import Run


@dataclass(frozen=True)
class Column:
    """A measured column: its label in figures, its unit, and its definition."""

    label: str
    unit: str
    meaning: str


# fmt: off
METRICS: dict[str, Column] = {
    "throughput_samples_per_s": Column("Throughput", "samples/s",
        "Samples per second in the window, on the slowest rank's clock, evaluations and checkpoints left out; of ranks that "
        "train each at their own pace, the sum of what each trains on its own clock"),
    "bytes_per_s": Column("Bandwidth", "B/s",
        "Bytes per second in the window, on the slowest rank's clock, as a program reports them; what several ranks report is "
        "added up"),
    "flops_per_s": Column("Floating-point rate", "FLOP/s",
        "Floating-point operations per second in the window, on the slowest rank's clock, as a program reports them; what "
        "several ranks report is added up"),
    "step_time_s": Column("Step time", "s",
        "Mean step of the window, all ranks together: the sum of its parts, from the wait for data to the optimiser. Time "
        "between two steps counts in the throughput, not here"),
    "window_half_width": Column("Half-width of the window", "",
        "Half the 95 % interval of the mean step in the window, over that mean; from batch means, so that steps may be "
        "alike in spells"),
    "epoch_time_s": Column("Time per epoch", "s", "Training samples of one epoch over the throughput"),
    "training_time_s": Column("Training time", "s",
        "All epochs and evaluations: measured for a full run, else extrapolated from the window"),
    "extrapolation_factor": Column("Extrapolation", "",
        "Training time over the measured window that it is extrapolated from; empty for a full run"),
    "time_to_train_s": Column("Time to train", "s", "Training time and, where data is staged, the staging before it"),
    "stage_s": Column("Staging", "s", "Until every node had its copies of the data on its own disk, synced"),
    "staged_bytes": Column("Bytes staged", "B", "Bytes of data that all nodes copied, without what was there"),
    "first_batch_s": Column("Time to the first batch", "s",
        "Staging, and the longest wait of a rank for its first batch; without what is set up between the two"),
    "accuracy": Column("Held-out accuracy", "", "Share of held-out samples classified correctly, after the last epoch"),
    "training_accuracy": Column("Training accuracy", "",
        "The same of as many training samples, not augmented, after a whole training; by as much as it is higher, the model "
        "has learnt its samples by heart"),
    "auroc": Column("Mean AUROC", "", "Area under the ROC curve, mean over labels, after the last epoch"),
    "loss": Column("Training loss", "", "Mean loss over the last tenth of the steps"),
    "data_s": Column("Wait for data", "s", "Part of the mean step: until the last rank has its batch from the loader"),
    "convert_s": Column("Convert and copy", "s",
        "Part of the mean step: the batch is copied to the device and normalised there; 0 on an emulated accelerator"),
    "forward_s": Column("Forward", "s",
        "Part of the mean step: model and loss. Empty where it exchanges too (`fsdp`, `pipeline`), or alternates with "
        "backward (batch.accumulate)"),
    "backward_s": Column("Backward", "s",
        "Part of the mean step. Empty where forward is, and where the exchange overlaps with it"),
    "compute_s": Column("Forward and backward", "s",
        "Part of the mean step; with an overlapped exchange it holds the exchange too"),
    "exchange_s": Column("Exchange", "s",
        "Part of the mean step: the transfer, from when the last rank has entered the exchange. Empty where it overlaps "
        "with backward. Parameter servers step within it"),
    "exposed_exchange_s": Column("Exposed exchange", "s",
        "What a step is longer by because of an exchange that overlaps with backward: steps with it less steps without it "
        "(`no_sync`), which take turns after the window. Empty where nothing overlaps, under `horovod`, with "
        "batch.accumulate, and where three pairs take too long; under `fsdp` its reductions alone, not its all-gathers"),
    "exchange_wait_s": Column("Wait for the slowest rank", "s",
        "Mean over ranks of the time in the exchange before the last rank enters it; no part of the step, which has that "
        "rank's own work instead. Empty where the exchange overlaps, and where ranks train at their own pace"),
    "traced_step_s": Column("Traced step", "s",
        "Mean of the traced steps (`measure.trace_steps`), ranks and steps alike: by so much longer than a step of the window "
        "as the profiler costs"),
    "exchange_hidden": Column("Exchange hidden", "",
        "Of the time of all exchanges in the traced steps, the share in which their rank computes, as HolisticTraceAnalysis "
        "defines the overlap of communication and computation; waits for other ranks included"),
    "bare_transfer_s": Column("Exchange that nothing hides", "s",
        "Per traced step, mean over ranks: the exchange goes on, all ranks have entered it, and the rank does not compute"),
    "bare_wait_s": Column("Wait that nothing hides", "s",
        "Per traced step, mean over ranks: the exchange waits for a rank that has not entered it yet, and the rank does not "
        "compute"),
    "making_hidden": Column("Making batches hidden", "",
        "Of the time in which worker threads read and decode batches in the traced steps, the share in which their rank does "
        "not wait for one"),
    "copy_hidden": Column("Copies hidden", "",
        "Of the time of copies to a GPU in the traced steps, the share in which the GPU computes; empty on a CPU"),
    "optimiser_s": Column("Optimiser", "s",
        "Part of the mean step; under `zero1` with the exchange of weights, and 0 on an emulated accelerator"),
    "data_stall": Column("Data stall", "", "Wait for data over the mean step: one rank that waits holds up all"),
    "accelerator_utilisation": Column("Accelerator utilisation", "",
        "Emulated compute time over the window, mean over ranks; on one rank the AU of MLPerf Storage"),
    "mfu": Column("Model FLOPs utilisation", "",
        "Time that a rank's convolutions and matrix products, forward and backward, would take at the dense peak of their "
        "number types (`peak_tflops` of the machine), over the time they took; above 1 the stated peak is too low. Empty "
        "without a stated peak, where compute is emulated, and for compiled or sharded models, or where ranks share a device"),
    "loader_samples_per_s": Column("Loader alone", "samples/s",
        "Samples per second that the loader delivers with no training"),
    "dataset_bytes": Column("Training set", "B", "Bytes of the training set as it is stored"),
    "preparation_s": Column("Preparation", "s", "Duration of the data's preparation; empty if it resumed after a kill"),
    "preparation_cpu_s": Column("Preparation, CPU time", "s",
        "CPU time of the data's preparation, all threads; empty if it resumed after a kill"),
    "resident_share": Column("Resident", "",
        "Share of the training files in the page cache after it was warmed or emptied, largest of nodes"),
    "read_bytes": Column("Bytes read", "B", "Bytes that the ranks had the storage read during the run"),
    "expected_read_bytes": Column("Bytes expected", "B",
        "Least bytes that must be read from storage, given cache and limit"),
    "staleness": Column("Staleness", "updates",
        "Mean number of updates made by others while a gradient was computed (asynchronous servers)"),
    "foreign_cpu_share": Column("CPU taken by others", "",
        "Share of the host's cores that processes other than the run's took during the window, time stolen by the "
        "hypervisor included; largest of hosts"),
    "throttled_share": Column("Throttled", "",
        "Share of the window in which the processor was thermally throttled, mean over the cores that the run may use, "
        "largest of hosts; empty where the kernel does not count it"),
    "cpu_utilisation": Column("CPU utilisation", "",
        "Share of the window in which the cores that the run may use were busy, with whatever; mean over cores and hosts"),
    "disk_utilisation": Column("Disk utilisation", "",
        "Share of the window in which a disk of the host had requests (`%util` of iostat), added up over its disks to at most "
        "1, mean over hosts. Once a second, so that a window counts with up to a second on either side. File systems of a "
        "network have no disk here"),
    "system_share": Column("System time", "",
        "Share of the ranks' CPU time that the kernel took in the window: page faults, messages, reads; worker processes "
        "left out, evaluations included"),
    "minor_faults": Column("Page faults per step", "",
        "Page faults of all ranks in the window that read nothing from a disk, per step; many are memory that the allocator "
        "asks for anew in each step. A warning of the run where they take a tenth of the CPU time"),
    "major_faults": Column("Page faults from disk per step", "", "The same of page faults that read from a disk"),
    "involuntary_switches": Column("Involuntary switches per step", "",
        "How often the kernel took a core from a rank for another process, all ranks in the window, per step"),
    "device_utilisation": Column("Device utilisation", "",
        "Share of the window in which a kernel ran on the accelerator, as NVML samples it once a second; mean over devices. "
        "Empty where NVML does not answer"),
    "device_idle_share": Column("Device nearly idle", "",
        "Share of the window's seconds in which device utilisation, mean over a host's devices, was below 25 %"),
    "device_busy_share": Column("Device busy", "", "Share of the window's seconds in which it was above 90 %"),
    "device_used_mib": Column("Device memory in use", "MiB",
        "Most memory in use on the accelerators of one host in the window, theirs together and other processes' included, as "
        "NVML samples it once a second"),
    "device_processes": Column("Processes on the devices", "",
        "Most processes that computed on the accelerators of one host in the window, others' included, as NVML counts them "
        "once a second"),
    "device_power_w": Column("Device power", "W",
        "Mean power of all accelerators of the run in the window, as NVML samples it"),
    "j_per_sample": Column("Energy per sample", "J",
        "Energy of the run's accelerators from the start of the window to its end, time between steps included, over the "
        "samples trained in it: by NVML's energy counters, else by the trapezoid rule from sampled power"),
    "memory_mib": Column("Memory", "MiB",
        "Largest anonymous memory of all ranks and their worker processes on one node, shared pages in proportion: the sum "
        "of each process's peak so far, by the kernel's counter (VmHWM)"),
    "wall_s": Column("Wall time of the run", "s", "From the start of the ranks to the result, in all jobs together"),
    "checkpoint_s": Column("Checkpoint", "s", "Mean time of writing one checkpoint, all ranks waiting"),
    "checkpoint_share": Column("Checkpoint share", "",
        "Time of periodic checkpoints over that of all steps and what is between them"),
    "parameters": Column("Parameters", "", "Trainable parameters of the model"),
    "setup_s": Column("Set-up", "s",
        "Model and strategy made ready on the slowest rank, tracing, profiling and search included"),
    "trace_s": Column("Tracing", "s", "Part of the set-up of `pipeline`: the model as a chain of operators"),
    "profile_s": Column("Profiling", "s", "Part of the set-up of `pipeline`: time and memory of each operator"),
    "search_s": Column("Search", "s", "Part of the set-up of `pipeline`: stages, replicas and micro-batches"),
    "stages": Column("Stages", "", "Stages that `pipeline` cut the model into"),
    "replicas": Column("Replicas", "", "Replicas of each stage of `pipeline`"),
    "micro_batches": Column("Micro-batches", "", "Micro-batches per step of `pipeline`"),
    "predicted_step_time_s": Column("Predicted step time", "s",
        "What `pipeline` expected of its choice, without loading, before the first step"),
    "device_memory_mib": Column("Memory of a device", "MiB",
        "Peak memory of the largest stage of `pipeline` from its second step on, above the process before there is a model; "
        "on a CPU without a memory limit it holds what the C library keeps of freed memory"),
    "predicted_memory_mib": Column("Predicted memory of a device", "MiB", "What `pipeline` planned its stages with"),
}

DERIVED: dict[str, Column] = {
    "efficiency": Column("Scaling efficiency", "",
        "X(N)·N0/(N·X(N0)), X the throughput; the base X(N0) is the same for all series of a workload: one rank without "
        "exchange"),
    "own_efficiency": Column("Efficiency over own base", "",
        "X(N)·N0/(N·X(N0)) with N0 the smallest rank count of the same series, or one rank without exchange where the "
        "strategy exchanges nothing there"),
    "time_to_accuracy_s": Column("Time to the accuracy", "s",
        "Until the study's `target_accuracy` is reached, interpolated linearly between the last evaluation below it and the "
        "first one that reaches it, or the time of the first of all where that one does; a run that ends below it is "
        "censored: its row has the time of its last evaluation as `time_to_accuracy_s_low`, and means are left out; empty where the study names no such accuracy"),
    "time_to_plateau_s": Column("Time until it is flat", "s",
        "Training time at the evaluation from which on held-out accuracy (or AUROC) stays within 0.01 of its last value; empty "
        "where it does so at the last alone"),
}
# fmt: on
MEASURED = {**METRICS, **DERIVED}

STATUSES = ("valid", "invalid", "skipped", "missing")
ROW_COLUMNS = (
    "run", "configuration", "status", "reason", "kind", "emulated", "oversubscribed", "disturbed", "started", "ended",
    "unchecked", "exchange_shares_cores", "training_samples", "round", "period", "drift", "drift_low", "drift_high", "drifted",
    "baseline_ranks", "own_baseline_ranks", "baseline_apart", "own_baseline_apart", "scaling",
)  # fmt: skip
"""Columns of tables of runs that are neither a key of a run nor measured: a user's own key has another name."""

PREDICTED = ("predicted_step_time_s", "predicted_memory_mib")
"""Columns that nobody measured: what a model of the run expected."""

SHARES = (
    "accuracy", "training_accuracy", "auroc", "data_stall", "accelerator_utilisation",
    "resident_share", "checkpoint_share", "foreign_cpu_share", "throttled_share", "device_utilisation",
    "device_idle_share", "device_busy_share", "cpu_utilisation", "disk_utilisation", "system_share", "exchange_hidden",
    "making_hidden", "copy_hidden",
)  # fmt: skip
"""Columns whose values lie between 0 and 1."""

WHOLE_TRAINING = ("training_time_s", "time_to_train_s")
"""Columns that are extrapolated where a run was not the whole training."""
MAX_TESTED_FACTOR = 1000.0
"""Up to this `extrapolation_factor` the intervals of extrapolated times are tested; beyond it none is known."""

EFFICIENCIES = {"efficiency": "baseline_ranks", "own_efficiency": "own_baseline_ranks"}
"""Ratios of throughputs, each with the column that holds the rank count of its base."""

DEVICE_FREE_COLUMNS = (
    "loader_samples_per_s", "stage_s", "staged_bytes", "preparation_s", "preparation_cpu_s", "dataset_bytes", "read_bytes",
)  # fmt: skip
"""Columns that no accelerator has a part in, real or emulated."""

WHOLE_HOST_COLUMNS = ("cpu_utilisation", "disk_utilisation")
"""Columns that contain what other programs use."""

NOT_JPEG = "plain: pillow and torch"
"""The instrument's `decoder` for images that are no JPEG."""

VOLATILE = ("memory_gib", "system", "transport_within", "transport_between")
"""Parts of the instrument in which two measurements may differ: transports differ with the ranks of a run."""

COMPARED = ("code", "python", "torch", "cpu", "allocator")
"""Parts of an instrument in which what is compared may not differ; what else is recorded may follow from what a run is."""

SPEEDS = ("throughput_samples_per_s", "bytes_per_s", "flops_per_s")
"""Rates of work: more is faster. A program may report several."""
RATE_UNITS = tuple(METRICS[column].unit for column in SPEEDS)
LOGARITHMIC_UNITS = ("s", "B", "MiB", "W", "J", *RATE_UNITS)
NEARLY_NONE = ("read_bytes", "staged_bytes")
"""Sizes of which next to nothing is a common value: what one run reads and another finds in memory has no factor."""


def on_logarithms(column: str) -> bool:
    """Whether means of a column are taken on logarithms: times, rates, sizes and ratios, which are positive.

    A factor on them (a slower clock, a busier host) then shifts all of them alike, and an interval never reaches
    below 0. Shares, losses, scores and counts are averaged as they are.
    """
    if column in NEARLY_NONE:
        return False
    return column in EFFICIENCIES or (column in MEASURED and MEASURED[column].unit in LOGARITHMIC_UNITS)


def provenance(row: Mapping[str, Any]) -> tuple[str, ...]:
    """When and by what a run was measured: its period, and the parts of its instrument that are COMPARED."""
    return (str(row.get("period")), *(str(row.get(f"instrument.{key}")) for key in COMPARED))


def extrapolated_too_far(row: Mapping[str, Any], column: str) -> bool:
    """Whether a run's time of the whole training is extrapolated by more than intervals were tested for."""
    factor = row.get("extrapolation_factor")
    return column in WHOLE_TRAINING and isinstance(factor, (int, float)) and factor > MAX_TESTED_FACTOR


def kind_of(row: Mapping[str, Any], column: str) -> str:
    """The kind of one run's number: as its result says, forecasts are predicted, all else is measured."""
    of = "throughput_samples_per_s" if column in EFFICIENCIES else column
    return "predicted" if column in PREDICTED else str(row.get(f"{of}_kind") or "measured")


def kind_of_all(kinds: Sequence[str]) -> str:
    """The kind of a mean: the least certain one of its numbers."""
    return next((kind for kind in ("predicted", "extrapolated", "reported") if kind in kinds), "measured")


def columns_of(spec: RunSpec) -> dict[str, Any]:
    """Every key of a run, dotted, with its value; `model`, `strategy` and `data.source` are their names.

    `hosts` is one text, names with a blank between them.
    """
    columns: dict[str, Any] = {"model": spec.model.name, "strategy": spec.strategy.name}
    for key, value in flat(spec.to_full_dict()):
        columns.setdefault(key, value)
    columns["data.source"] = spec.data.source
    columns["nodes"] = spec.nodes_named
    columns["hosts"] = None if spec.hosts is None else " ".join(spec.hosts)
    columns["batch.global"] = spec.global_batch
    columns["batch.per_rank"] = spec.rank_batch
    columns["scaling"] = "weak" if spec.batch.per_rank is not None else "strong"
    if (program := spec.program) is None:
        del columns["program"]
        return columns
    # A program has its own keys, its name as the model, and nothing for keys that it does not use.
    used = {key: value if key == "scaling" or program.uses(key) else None for key, value in columns.items()}
    used = {key: value for key, value in used.items() if not key.startswith("program.keys.")}
    return {**used, **program.keys, "model": program.name, "strategy": "program"}


def columns_of_runs(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """`columns_of` each run of a study; repeats of a configuration differ in `repeat` alone: `seed` is that of the first."""
    runs = list(runs)
    one = {run.configuration: run for run in runs}  # only its columns are worked out, and kept
    own = ({"seed": run.spec.seed - run.spec.repeat, "repeat": run.spec.repeat} for run in runs)
    return [{**one[run.configuration].columns, **of_run} for run, of_run in zip(runs, own, strict=True)]


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The keys of nested maps, dotted, with their values."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def matches(value: Any, condition: Any) -> bool:
    """Whether a value meets a condition, which is another value.

    A list stands for any of its values. A name agrees with a map of that name alone, in both directions:
    `strategy: ring` and `strategy: {name: ring}` ask for the same.
    """
    if value == condition:
        return True
    if isinstance(condition, list):
        return any(matches(value, one) for one in condition)
    if isinstance(value, dict) and isinstance(condition, str):
        return condition in (value.get("name"), value.get("source"))
    if isinstance(value, str) and isinstance(condition, dict):
        return condition in ({"name": value}, {"source": value})
    return False


def agrees(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether a row has the wanted values of all keys of a choice."""
    return all(matches(row.get(key), value) for key, value in where.items())
