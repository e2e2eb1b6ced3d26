"""Whether a run is valid: `invalid_reason` is the one place that decides it; `unchecked` says what it could not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scalestudy.data.manifest import Manifest
from scalestudy.results.metrics import Values, epoch_steps
from scalestudy.results.reads import judge_reads
from scalestudy.results.reports import Measured
from scalestudy.training.job import Job

LEAST_WINDOW_S = 0.2
LEAST_WINDOW_STEPS = 5


@dataclass(frozen=True)
class Evidence:
    """What a run is judged by."""

    job: Job
    measured: Measured
    values: Values
    """Its metrics."""
    manifest: Manifest


def invalid_reason(job: Job, measured: Measured, values: Values, manifest: Manifest) -> str | None:
    """Why the run is invalid, None where it is valid. Sanity comes before performance: the first reason counts."""
    evidence = Evidence(job, measured, values, manifest)
    return next((reason for check in CHECKS for reason in check(evidence)), None)


def unchecked(job: Job, measured: Measured, values: Values, manifest: Manifest) -> list[str]:
    """What could not be checked here, and why, one sentence each: neither a reason to trust the run nor one not to."""
    sentence = judge_reads(job.spec, manifest, measured.reports, values).unchecked
    return [] if sentence is None else [sentence]


def strategy_is_sane(run: Evidence) -> Iterator[str]:
    """No rank's strategy has found the run invalid."""
    yield from filter(None, (report.invalid_reason for report in run.measured.reports))


def training_is_finite(run: Evidence) -> Iterator[str]:
    """Losses and parameters are finite."""
    if not all(report.finite for report in run.measured.reports):
        yield "the loss or a weight is not finite: lower optimiser.learning_rate"


def evaluations_have_scores(run: Evidence) -> Iterator[str]:
    """Every evaluation has scores."""
    for report in run.measured.reports:
        for evaluation in report.evaluations:
            if reason := evaluation.invalid_reason:
                yield f"{reason}, after epoch {evaluation.epoch:g}: see what the model does in evaluation mode"


def parameters_are_equal(run: Evidence) -> Iterator[str]:
    """Ranks hold the same parameters, where the strategy promises it."""
    digests = {report.parameter_digest for report in run.measured.reports}
    if len(digests) > 1:
        ranks = run.job.spec.ranks
        yield f"ranks hold different parameters after the last step ({len(digests)} of {ranks} differ)"


def samples_are_as_planned(run: Evidence) -> Iterator[str]:
    """Every step had its samples."""
    report = run.measured.reports[0]
    planned = (report.steps_done - report.first_step) * run.job.spec.global_batch
    seen = sum(report.samples_seen for report in run.measured.reports)
    if seen != planned:
        yield f"{seen:,} samples were seen, {planned:,} were planned"


def full_training_is_complete(run: Evidence) -> Iterator[str]:
    """A run that is the full training made all its steps."""
    spec, report = run.job.spec, run.measured.reports[0]
    all_steps = epoch_steps(spec, run.manifest, report) * spec.train.epochs
    if spec.runs_full_training and report.steps_done != all_steps:
        yield f"{report.steps_done} of {all_steps} steps were made"


def window_is_long_enough(run: Evidence) -> Iterator[str]:
    """The measurement window is long enough to mean something, where steps are what is measured."""
    if run.job.spec.measure.whole_program:
        return
    steps, window_s = int(run.measured.in_window.sum()), float(run.measured.window_s.max())
    if steps < LEAST_WINDOW_STEPS or window_s < LEAST_WINDOW_S:
        yield (
            f"the measured window is {steps} steps and {window_s:.2f} s; at least {LEAST_WINDOW_STEPS} steps and "
            f"{LEAST_WINDOW_S} s mean something: raise measure.steps or train.epochs, or lower measure.warmup_steps"
        )


def staging_is_complete(run: Evidence) -> Iterator[str]:
    """Every node that was to make copies of its own copied all of them."""
    stages = [report.stage for report in run.measured.reports if report.stage is not None]
    for stage in stages if not run.job.spec.stage.reuse else ():
        copied = sum(other.copied_bytes for other in stages if other.node == stage.node)
        if copied < stage.bytes:
            yield f"node {stage.node} was to copy {stage.bytes:,} bytes, and copied {copied:,}"


def storage_was_read(run: Evidence) -> Iterator[str]:
    """What storage had to deliver was read from it, and nothing where all was in the page cache."""
    reason = judge_reads(run.job.spec, run.manifest, run.measured.reports, run.values).invalid
    if reason is not None:
        yield reason


CHECKS = (
    strategy_is_sane,
    training_is_finite,
    evaluations_have_scores,
    parameters_are_equal,
    samples_are_as_planned,
    full_training_is_complete,
    window_is_long_enough,
    staging_is_complete,
    storage_was_read,
)
"""In the order in which they count. Each yields a sentence for everything that is wrong."""
