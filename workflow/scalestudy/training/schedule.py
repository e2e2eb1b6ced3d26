"""Which steps a run makes: how many, from which on it is measured, at which learning rate, where it evaluates."""

from __future__ import annotations

from scalestudy.spec.run import RunSpec


class Schedule:
    """The steps of one run, counted from 0 over all its epochs."""

    def __init__(self, spec: RunSpec, steps_per_epoch: int) -> None:
        self.spec, self.steps_per_epoch = spec, steps_per_epoch
        self.planned_steps = steps_per_epoch * spec.train.epochs
        """The number of steps after which the run ends."""
        if spec.measure.steps is not None:
            self.planned_steps = min(self.planned_steps, spec.measure.warmup_steps + spec.measure.steps)

    def learning_rate(self, step: int) -> float:
        """Learning rate of a step (from 0): linear warm-up (Goyal et al., arXiv 1706.02677, 2.2), then steps.

        The rate after warm-up is linear in the global batch (2.1) where the spec asks for it. Warm-up starts from the
        unscaled rate where the rate is scaled up, and from a tenth elsewhere.
        """
        spec = self.spec.optimiser
        epoch, full = step / self.steps_per_epoch, spec.learning_rate
        if spec.learning_rate_for_batch is not None:
            full = spec.learning_rate * self.spec.global_batch / spec.learning_rate_for_batch
        rate = full
        if spec.steps is not None:
            # A millionth of a step forgives the rounding of `step / steps_per_epoch`.
            rate *= spec.steps.factor ** int((epoch + 1e-6 / self.steps_per_epoch) / spec.steps.every_epochs)
        if epoch < spec.warmup_epochs:
            start = spec.learning_rate / full if full > spec.learning_rate else 0.1
            rate *= start + (1 - start) * epoch / spec.warmup_epochs
        return rate

    def window(self, done: int) -> tuple[int, int]:
        """First step of the measurement window, and the step after its last, after `done` steps."""
        return min(self.spec.measure.warmup_steps, max(0, done - 1)), done

    def evaluates_after(self, done: int) -> bool:
        """Whether an epoch ends here after which the spec asks for an evaluation."""
        every = self.spec.train.evaluate_every_epochs
        return bool(every) and done > 0 and done % (every * self.steps_per_epoch) == 0
