"""Whether a run of the project is valid: `invalid_reason` decides it (of a user's program: program/result.py); `unchecked` names checks that were impossible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property

from scalestudy.data.load.sampler import planned_checksums
from scalestudy.data.manifest import Manifest
from scalestudy.errors import UserError
from scalestudy.results.metrics import Values, epoch_steps
from scalestudy.results.reads import Reads, judge_reads
from scalestudy.results.records import Measured
from scalestudy.results.transports import Transports, transports_of, unknown_transport, unpromised_transports
from scalestudy.spec.columns import NOT_JPEG
from scalestudy.spec.ids import run_id_with
from scalestudy.spec.run import MIN_WINDOW_STEPS
from scalestudy.training.job import Job
from scalestudy.training.report import Report

MAX_THROTTLED = 0.05
"""Share of the window in which the processor may have been thermally throttled."""
MIN_WINDOW_S = 0.2


@dataclass(frozen=True)
class RunEvidence:
    """Evidence on which a run is judged."""

    job: Job
    measured: Measured
    values: Values
    """Its metrics."""
    manifest: Manifest

    @cached_property
    def reads(self) -> Reads:
        """The verdict on its reads."""
        return judge_reads(self.job.spec, self.manifest, self.measured.reports, self.values)

    @cached_property
    def decoders(self) -> list[str]:
        """How ranks decoded images, in all attempts at the run; each way once. Empty where no image was decoded."""
        if self.manifest.format == "tensors" or self.job.spec.loader.mode == "synthetic":
            return []
        from scalestudy.data.load.images import begins_with_jpeg

        with suppress(OSError, EOFError, UserError):  # the data is on other nodes, or gone
            if self.manifest.payload == "coded" and not begins_with_jpeg(self.job.manifest, self.manifest):
                return [NOT_JPEG]
        return list(dict.fromkeys(way for report in self.measured.reports for way in report.decoders))

    @cached_property
    def transports(self) -> Transports:
        """The transports of NCCL."""
        return transports_of(self.job) if self.measured.reports[0].backend == "nccl" else Counter()


def invalid_reason(run: RunEvidence) -> str | None:
    """Why the run is invalid, None where it is valid. Sanity comes before performance: the first reason counts."""
    return next((reason for check in CHECKS for reason in check(run) if reason), None)


def unchecked(run: RunEvidence) -> list[str]:
    """Checks that were impossible here, with the reason, one sentence each: neither a reason to trust the run nor one not to."""
    is_nccl = run.measured.reports[0].backend == "nccl"
    transport = unknown_transport(run.job, run.transports) if is_nccl else None
    return [sentence for sentence in (run.reads.unchecked, transport) if sentence is not None]


def code_is_that_of_the_id(run: RunEvidence) -> Iterator[str]:
    """Every rank trained with the files of the user's own that the run's id was made from."""
    for report in run.measured.reports:
        if report.own_code and run_id_with(run.job.spec, report.own_code) != run.job.run:
            files = " and ".join(sorted(f"{target.partition(':')[0]}.py" for target in report.own_code))
            yield (
                f"rank {report.rank} trained with a different {files} than the one in the run's id: the file was changed "
                "meanwhile; run the command again for the code as it is now"
            )
    first, *others = run.measured.reports
    for report in others:
        if report.imported != first.imported:
            names = {*first.imported, *report.imported}
            files = " and ".join(sorted(n for n in names if first.imported.get(n) != report.imported.get(n)))
            yield f"rank {report.rank} imported another {files} than rank 0: is config/extensions/ the same everywhere?"


def device_is_that_of_the_run(run: RunEvidence) -> Iterator[str]:
    """Parameters and loss of every rank lie on the kind of device that the run is about."""
    device = run.job.resolved.device
    for report in run.measured.reports:
        if wrong := sorted(set(report.computed_on) - {device}):
            what = f"rank {report.rank} computed on {' and '.join(wrong)}, but the run is on {device}"
            yield f"{what}: see where the model puts its parameters"


def threads_are_those_of_the_run(run: RunEvidence) -> Iterator[str]:
    """Torch computes with as many threads after the last step as the run has for each rank."""
    planned = run.job.resolved.threads_per_rank
    for report in run.measured.reports:
        if report.threads not in (None, planned):
            yield (
                f"rank {report.rank} ended with {report.threads} threads of torch, {planned} were planned: set "
                "`threads_per_rank` in place of torch.set_num_threads"
            )


def training_is_finite(run: RunEvidence) -> Iterator[str]:
    """Losses and parameters are finite."""
    wrong = [report.rank for report in run.measured.reports if not report.finite]
    if wrong:
        where = "" if len(wrong) == len(run.measured.reports) else f" on {_ranks(wrong)}"
        yield f"the loss or a weight is not finite{where}: lower optimiser.learning_rate"


def evaluations_have_scores(run: RunEvidence) -> Iterator[str]:
    """Every evaluation has scores."""
    for report in run.measured.reports:
        for evaluation in report.evaluations:
            if reason := evaluation.invalid_reason:
                yield f"{reason}, after epoch {evaluation.epoch:g}: see what the model does in evaluation mode"


def parameters_are_equal(run: RunEvidence) -> Iterator[str]:
    """Ranks hold the same parameters, where the strategy promises it."""
    first, *others = run.measured.reports
    differ = [report.rank for report in others if report.parameter_digest != first.parameter_digest]
    if differ:
        yield f"ranks hold different parameters after the last step: those of {_ranks(differ)} are not those of rank 0"


def samples_are_as_planned(run: RunEvidence) -> Iterator[str]:
    """Each rank had its share of the samples of every step."""
    for report in run.measured.reports:
        own = report.steps_done * run.job.spec.rank_batch
        if report.samples_seen != own:
            yield f"rank {report.rank} saw {report.samples_seen:,} samples, {own:,} were planned"


def samples_are_those_planned(run: RunEvidence) -> Iterator[str]:
    """Each rank saw its own samples, each as often as planned."""
    reports = [report for report in run.measured.reports if report.seen is not None]
    if run.job.spec.loader.mode == "stream" or any(report.node_steps is not None for report in reports):
        yield from _seen_by_two(reports)
        return
    spec, samples = run.job.spec, run.manifest.train.samples

    @cache
    def planned(done: int) -> list[int]:
        return planned_checksums(samples, spec.global_batch, spec.ranks, spec.seed, 0, done)

    for report in reports:
        if planned(report.steps_done)[report.rank] != report.seen:
            yield (
                f"rank {report.rank} saw other samples than were planned for it: some were lost, seen twice, or those of "
                "another rank"
            )


def _seen_by_two(reports: Sequence[Report]) -> Iterator[str]:
    """In storage order, and where nodes have samples of their own: at least no two ranks saw the same ones."""
    first_with: dict[int | None, int] = {}
    for report in reports:
        if (other := first_with.setdefault(report.seen, report.rank)) != report.rank:
            yield f"ranks {other} and {report.rank} saw the same samples"


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def images_have_one_decoder(run: RunEvidence) -> Iterator[str]:
    """All ranks, in all attempts at the run, decoded images in the same way."""
    ways = run.decoders
    if len(ways) > 1:
        yield f"images were decoded in {len(ways)} ways ({'; '.join(ways)}): see that every node has the C kernel, or none"


def full_training_is_complete(run: RunEvidence) -> Iterator[str]:
    """A run that is the full training made all its steps."""
    spec, report = run.job.spec, run.measured.reports[0]
    all_steps = epoch_steps(spec, run.manifest, report) * spec.train.epochs
    if spec.runs_full_training and report.steps_done != all_steps:
        yield f"{report.steps_done} of {all_steps} steps were made"


def window_is_long_enough(run: RunEvidence) -> Iterator[str]:
    """The measurement window is long enough to mean something, where steps are measured."""
    if run.job.spec.measure.whole_program:
        return
    steps, window_s = int(run.measured.in_window.sum()), float(run.measured.window_s.max())
    if steps < MIN_WINDOW_STEPS or window_s < MIN_WINDOW_S:
        yield (
            f"the measured window is {steps} steps and {window_s:.2f} s; at least {MIN_WINDOW_STEPS} steps and "
            f"{MIN_WINDOW_S} s mean something: raise measure.steps or train.epochs, or lower measure.warmup_steps"
        )


def staging_is_complete(run: RunEvidence) -> Iterator[str]:
    """Every node that was to make copies of its own copied all of them."""
    stages = [report.stage for report in run.measured.reports if report.stage is not None]
    for stage in stages if not run.job.spec.stage.reuse else ():
        copied = sum(other.copied_bytes for other in stages if other.node == stage.node)
        if copied < stage.bytes:
            yield f"node {stage.node} was to copy {stage.bytes:,} bytes, and copied {copied:,}"


def throttled(share: float | None) -> Iterator[str]:
    """Whether a processor was thermally throttled for too large a share of the window."""
    if share is not None and share > MAX_THROTTLED:
        yield (
            f"the CPU was thermally throttled for {share:.0%} of the window, more than {MAX_THROTTLED:.0%}: "
            "see to its cooling, or limit its clock, and measure again"
        )


CHECKS: tuple[Callable[[RunEvidence], Iterable[str | None]], ...] = (
    code_is_that_of_the_id,
    lambda run: [report.invalid_reason for report in run.measured.reports],  # by its strategy
    device_is_that_of_the_run,
    threads_are_those_of_the_run,
    training_is_finite,
    evaluations_have_scores,
    parameters_are_equal,
    samples_are_as_planned,
    samples_are_those_planned,
    images_have_one_decoder,
    full_training_is_complete,
    window_is_long_enough,
    staging_is_complete,
    lambda run: [run.reads.invalid],
    lambda run: unpromised_transports(run.job, run.transports),
    lambda run: throttled(run.values.get("throttled_share")),
)
"""In the order in which they count. Each yields a sentence for everything that is wrong."""
