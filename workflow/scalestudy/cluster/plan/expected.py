"""Estimate of a run, from the first of these that is known; every estimate names its source.

1. `repeats`: times of other repeats of the run, or of the run itself before `scalestudy forget`, on this machine;
2. `neighbours`: times of similar runs on this machine: a set-up time, and a time per sample and rank;
3. `window`: of a program, its own limit of time and an assumed start;
4. `published`: the published step time of its (or the emulated) accelerator;
5. `flops`: counted operations over the accelerator's peak times a range of utilisation;
6. `unknown`.

Preparation of data is estimated from `rates`.

History comes from results, never from durations that Snakemake measured: on a cluster those include the queue.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, get_args

from scalestudy.cluster.plan import counts, nearest_runs
from scalestudy.cluster.plan.counts import Work, data_of, model_cost, work_of
from scalestudy.cluster.plan.nearest_runs import EndedRun, Span, read_history
from scalestudy.data.catalogue import Synthetic
from scalestudy.errors import UserError
from scalestudy.spec.layout import history_files
from scalestudy.spec.machine import Machine, geometry
from scalestudy.spec.run import INFINITE, RunSpec
from scalestudy.spec.step_times import emulated_step_time
from scalestudy.spec.study import Run
from scalestudy.strategies import cost
from scalestudy.strategies.cost import Link

Kind = Literal["repeats", "neighbours", "window", "published", "flops", "rates", "unknown"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Sources of estimates, best first."""

START_UP_S: Span = (20.0, 120.0)
"""Seconds of a cluster's job outside its run: the job's start, imports over a shared file system, and its end; outside the
steps of a run whose step time is published or computed."""
START_UP_HERE_S: Span = (0.5, 10.0)
"""The same where a run starts immediately on this machine."""
UTILISATION: Span = (0.047, 1.35)
"""Share of the peak that training reaches: the published step times of config/reference/ lie between the two, from
Inception v3 with one image per step to VGG16, whose convolutions by Winograd's method need fewer operations than are
counted."""
MIN_EFFICIENCY = 0.67
"""Least share of an accelerator's published throughput that is left with loading, on one rank."""
OTHER_EFFICIENCY = 0.4
"""The same for several ranks. Below the 0.42 and 0.47 of config/reference/tsubame_resnet50*.csv at 32 and 128 GPUs. The
0.035 of the former at 128 GPUs, where all of them read one file, is beyond a plan."""
SERVER_EFFICIENCY = 0.1
"""The same for parameter servers over links of unknown rate."""
MIN_LINK_SHARE = 0.25
"""Least share of a link's rate that an exchange reaches: an assumption."""
BACKWARD_SHARE = 2 / 3
"""Share of a step without exchange that the backward pass takes: it computes twice as much as the forward pass."""
OVERLAPPED = ("allreduce", "horovod", "fsdp")
"""Strategies that exchange during the backward pass; of the others those whose schedule says so."""
FSDP_BYTES = 1.5
"""Bytes of two all-gathers and a reduce-scatter over those of an all-reduce (Zhao et al., PyTorch FSDP, VLDB 2023)."""
EMULATED_BYTES_PER_S = 5e8
"""Slowest exchange that is expected between emulated ranks, bytes of gradients per second."""
ONE_REPEAT: Span = (0.9, 1.1)
SEVERAL_REPEATS: Span = (0.97, 1.03)
SAME_PROGRAM: Span = (0.5, 2.0)
"""Factor by which the range is widened, for each source."""
INDEXED_PER_S: Span = (200.0, 105_000.0)
MADE_PER_S: Span = (50.0, 9_300.0)
"""Samples per second of one node, to find files and look at their sizes, and to write them as well. The slower is an
assumption, by which jobs request their walltime; the faster was measured with files of 1 kB
(docs/measured/data_preparation.txt): larger ones, and images that are decoded, take longer."""


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of a job from its start to its end, and how they are known; unknown: 0 and infinity.

    Low and high are meant as the 5th and the 95th percentile.
    """

    low_s: float
    high_s: float
    kind: Kind
    note: str = ""
    assumed: str = ""
    """Assumption about data that has not been indexed."""

    @property
    def known(self) -> bool:
        """Whether the time is known."""
        return self.kind != "unknown"


PROGRAM_START_S: Span = (0.0, 300.0)
"""Of a program before its window of known length: imports, data, warm-up. An assumption."""
EXPLAINED_S = 60.0, 600.0
"""Of a run that explains a program; a script that starts slowly needs more than its two minutes for three rounds."""
UNKNOWN = TimeEstimate(
    0.0, math.inf, "unknown", "no repeat, no similar run, no published step time, no count of operations"
)


class Expectation:
    """Expected times of runs and preparations on one machine."""

    def __init__(self, name: str, machine: Machine) -> None:
        self.machine = machine
        self.repeats: dict[str, list[float]] = defaultdict(list)
        self.like: dict[str, list[EndedRun]] = defaultdict(list)
        self._known_similar: dict[tuple[str, str], tuple[nearest_runs.Groups, str]] = {}
        for ended in (ended for file in history_files(name) for ended in read_history(file)):
            self.repeats[ended.configuration].append(ended.seconds)
            self.like[ended.like].append(ended)
        if machine.start_up_s is not None:
            self.start_up_s = machine.start_up_s, machine.start_up_s
        else:
            self.start_up_s = START_UP_S if (machine.nodes or 1) > 1 else START_UP_HERE_S

    @property
    def again_s(self) -> float:
        """Seconds that each further job of a chain takes until it trains again: the middle of the expectation."""
        return sum(self.start_up_s) / 2

    def of(self, run: Run) -> TimeEstimate:
        """Low and high seconds of a run's job, start-up, evaluation and end included; staging by earlier runs alone."""
        spec = run.spec
        estimate = self._repeats(run.configuration) or self._same_program(spec)
        if estimate is None and spec.program is not None and spec.program.explain:
            estimate = TimeEstimate(*EXPLAINED_S, "window", "rounds of at most two minutes, three at least")
        elif estimate is None and spec.program is not None and spec.measure.minutes is not None:
            low, high = (60 * spec.measure.minutes + start_s for start_s in PROGRAM_START_S)
            estimate = TimeEstimate(low, high, "window", f"and up to {PROGRAM_START_S[1]:.0f} s before it")
        if estimate is None and (data := data_of(spec)) is not None:
            work = work_of(spec, data)
            estimate = self._neighbours(spec, work) or self._accelerator(spec, work) or self._flops(spec, work)
            estimate = replace(estimate, assumed=data.assumed) if estimate else None
        if estimate is None:
            return UNKNOWN
        low, high = self.start_up_s
        return replace(estimate, low_s=estimate.low_s + low, high_s=estimate.high_s + high)

    def of_dataset(self, spec: RunSpec) -> TimeEstimate:
        """Seconds of the job that prepares the data of a run, by known rates."""
        data = data_of(spec)
        if data is None:
            return UNKNOWN
        # Data that is made while it is read needs no preparation.
        samples = 0 if isinstance(spec.data, Synthetic) else data.train_samples + data.test_samples
        slow, fast = INDEXED_PER_S if counts.used_in_place(spec) else MADE_PER_S
        low, high = self.start_up_s
        note = f"{slow:,.0f} to {fast:,.0f} samples per second"
        return TimeEstimate(samples / fast + low, samples / slow + high, "rates", note)

    def _repeats(self, configuration: str) -> TimeEstimate | None:
        seconds = self.repeats.get(configuration)
        if not seconds:
            return None
        low, high = SEVERAL_REPEATS if len(seconds) > 1 else ONE_REPEAT
        return TimeEstimate(low * min(seconds), high * max(seconds), "repeats", f"{len(seconds)} on this machine")

    def _same_program(self, spec: RunSpec) -> TimeEstimate | None:
        """From runs of the same program with other keys or ranks."""
        took = self.like.get(nearest_runs.like_key(spec.to_dict())) if spec.program is not None else None
        if not took:
            return None
        seconds, (low, high) = [one.seconds for one in took], SAME_PROGRAM
        return TimeEstimate(low * min(seconds), high * max(seconds), "neighbours", f"{len(took)} runs of the program")

    def _neighbours(self, spec: RunSpec, work: Work) -> TimeEstimate | None:
        groups, note = self._similar(nearest_runs.like_key(spec.to_dict()), spec.strategy.name)
        samples = nearest_runs.rank_samples(spec, work)
        if not groups or samples is None:
            return None
        return TimeEstimate(*nearest_runs.seconds_of(spec.ranks, spec.rank_batch, samples, groups), "neighbours", note)

    def _similar(self, like: str, strategy: str) -> tuple[nearest_runs.Groups, str]:
        """The runs that do the same to each sample, of the same strategy where there are any; and in words how many."""
        if (like, strategy) not in self._known_similar:
            runs = [ended for ended in self.like.get(like, []) if ended.rank_samples]
            runs = [ended for ended in runs if ended.strategy == strategy] or runs
            note = f"{len(runs)} similar runs of {', '.join(map(str, sorted({one.ranks for one in runs})))} ranks"
            self._known_similar[like, strategy] = nearest_runs.by_geometry(runs), note
        return self._known_similar[like, strategy]

    def _accelerator(self, spec: RunSpec, work: Work) -> TimeEstimate | None:
        """From the published step time of the emulated accelerator, or of the one that the machine has."""
        accelerator = spec.accelerator or self.machine.accelerator
        if accelerator is None or (not spec.accelerator and self._device(spec) == "cpu"):
            return None
        reads = not isinstance(spec.data, Synthetic) and spec.loader.mode != "synthetic"
        if spec.accelerator == INFINITE and reads:
            return None  # it takes as long as its data, of which nothing is known
        if spec.autocast and not spec.accelerator:
            accelerator += "_mixed"  # config/reference/README.md: mixed precision counts as a separate accelerator
        with suppress(UserError):  # of a model without published times
            step = emulated_step_time(spec.model.name, accelerator, spec.rank_batch)
            span, links = self._with_exchange(spec, step)
            return _training(spec, work, span, "published", f"step time of {accelerator}{links}")
        return None

    def _with_exchange(self, spec: RunSpec, step_s: float) -> tuple[Span, str]:
        """Least and most seconds of a step with its exchange, and the source of the latter, in words.

        The exchange is that of the strategy's formula over the machine's links, at their full rate and hidden behind the
        backward pass where the strategy overlaps the two, or at MIN_LINK_SHARE of it and not hidden.
        """
        if spec.ranks == 1:
            return (step_s, step_s / MIN_EFFICIENCY), ""
        counted = model_cost(spec)
        size = 4.0 * (counted.parameters if counted else 0)
        if spec.accelerator:  # ranks on hosts whose links are not those of the machine file
            return (step_s, step_s / OTHER_EFFICIENCY + 2 * size / EMULATED_BYTES_PER_S), ""
        exchange_s = exchange_time(spec, self.machine, size)
        if exchange_s is None:
            least = SERVER_EFFICIENCY if "server" in spec.strategy.name else OTHER_EFFICIENCY
            return (step_s, step_s / least), ", links unknown"
        overlaps = spec.strategy.name in OVERLAPPED or getattr(spec.strategy, "schedule", "") == "overlapped"
        low_s = step_s + max(0.0, exchange_s - (BACKWARD_SHARE * step_s if overlaps else 0.0))
        return (low_s, step_s / OTHER_EFFICIENCY + exchange_s / MIN_LINK_SHARE), f", exchange of {exchange_s:.2g} s"

    def _flops(self, spec: RunSpec, work: Work) -> TimeEstimate | None:
        peak = self.machine.peak_tflops.get(spec.autocast or ("tf32" if spec.tf32 else spec.dtype))
        counted = model_cost(spec)
        if peak is None or counted is None or spec.accelerator or self._device(spec) == "cpu":
            return None
        least, most = UTILISATION
        ideal = counted.training_flops * spec.rank_batch / (peak * 1e12)
        return _training(spec, work, (ideal / most, ideal / least), "flops", f"{least:.0%} to {most:.0%} of the peak")

    def _device(self, spec: RunSpec) -> str:
        return spec.device or self.machine.device or ("cuda" if self.machine.devices_per_node else "cpu")


def exchange_time(spec: RunSpec, machine: Machine, size: float) -> float | None:
    """Seconds to exchange `size` bytes of gradients once at the full rate of the links; None where a rate is not known,
    or the strategy has no formula (pipeline)."""
    nodes, per_node = geometry(spec, machine)
    gb_per_s = machine.device_link_gb_per_s and machine.device_link_gb_per_s / 2  # that of both directions together
    if spec.strategy.name == "pipeline" or not size or (per_node > 1 and not gb_per_s):
        return None
    if nodes > 1 and not machine.network_gb_per_s:
        return None
    inside = Link(1e9 * (gb_per_s or machine.network_gb_per_s or 0.0))
    between = Link(1e9 * machine.network_gb_per_s) if machine.network_gb_per_s else inside
    strategy = spec.strategy
    if "server" in strategy.name:
        return cost.parameter_server(size, spec.ranks, getattr(strategy, "servers", 1), between)
    formulas: dict[str, Callable[..., float]] = {
        "hierarchical": cost.hierarchical,
        "two_dimensional": cost.two_dimensional,
        "halving_doubling": cost.flat_halving_doubling,
    }
    seconds = formulas.get(strategy.name, cost.flat_ring)(size, nodes, per_node, inside, between)
    return FSDP_BYTES * seconds if strategy.name == "fsdp" else seconds


def _training(spec: RunSpec, work: Work, step_s: Span, kind: Kind, note: str) -> TimeEstimate:
    """A whole run from its step time: steps, evaluations (forward alone: a third), and batches loaded ahead.

    Items that take `data.latency_s` are waited for by the loader's workers at the same time, or by the step itself.
    """
    wait_s = spec.rank_batch * getattr(spec.data, "latency_s", 0.0) / max(1, spec.loader.workers)
    steps_s = (max(one, wait_s) if spec.loader.workers else one + wait_s for one in step_s)
    low, high = (
        one * (work.steps + work.evaluated_samples / (3 * spec.global_batch) + work.loaded_samples / spec.rank_batch)
        + 60 * work.minutes
        for one in steps_s
    )
    return TimeEstimate(low, high, kind, note)
