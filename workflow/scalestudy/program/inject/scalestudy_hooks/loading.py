"""Loading of a script's batches: timed, and taken away."""

import copy
import dataclasses
import functools
import time
import weakref

REPLAYED_BATCHES = 4
"""Batches kept in memory and given again, in turn, where loading is taken away."""


class Loading:
    """The DataLoaders of one process, and the waits for their batches."""

    def __init__(self, torch, request):
        """Hook into DataLoader and its subclasses."""
        self.torch = torch
        self.is_removed = "loading" in request["remove"]
        self.are_copies_removed = "copies" in request["remove"]
        self.workers, self.pin = request.get("workers", 1), request.get("pin", False)
        self.produced_workers = set()
        self.loaders = weakref.WeakKeyDictionary()
        self.watched = []
        self.fetched_since_step = set()
        self.samples_since_step = self.steps = 0
        self.step_end = None
        self.waited_s = self.between_s = 0.0
        self.anchor = self.ended = None
        self.pauses = []
        self.iterators = set()
        self.watch_loaders(torch.utils.data.DataLoader)
        self.watch_subclasses(torch.utils.data.DataLoader)

    def watch_loaders(self, loader_class):
        """Time each batch that a DataLoader gives, and give kept ones where loading is taken away."""
        plain_init, plain_iter = loader_class.__init__, loader_class.__iter__
        loading = self

        @functools.wraps(plain_init)  # Lightning looks at its arguments
        def init(loader, *args, **kwargs):
            plain_init(loader, *args, **loading.loader_arguments(plain_init, loader, args, kwargs))

        def iterate(loader):
            return loading.batches(loader, plain_iter)

        if self.workers != 1 or self.pin:
            loader_class.__init__ = init
        loader_class.__iter__ = iterate
        self.iterators.add(iterate)

    def watch_subclasses(self, loader_class):
        """Watch subclasses that fetch batches themselves; all others call DataLoader.__iter__."""
        loading = self

        def init_subclass(cls, **kwargs):
            # DataLoader has no such method of its own; that of Generic is written in C in some Pythons.
            super(loader_class, cls).__init_subclass__(**kwargs)
            if cls.__module__.startswith("torchdata.stateful_dataloader") and "__iter__" in cls.__dict__:
                loading.watch_loaders(cls)

        loader_class.__init_subclass__ = classmethod(init_subclass)

    def loader_arguments(self, plain_init, loader, args, kwargs):
        """Keyword arguments of a DataLoader, with more workers or pinned memory as requested."""
        names = plain_init.__code__.co_varnames[1 : plain_init.__code__.co_argcount]
        given = names[: len(args)]
        kwargs = dict(kwargs)
        if self.workers != 1 and "num_workers" not in given:
            # Lightning makes each loader anew from the attributes of the first one.
            now, dataset = kwargs.get("num_workers", 0), id(args[0] if args else kwargs.get("dataset"))
            if (dataset, now) not in self.produced_workers:
                kwargs["num_workers"] = max(1, round(now * self.workers))
                self.produced_workers.add((dataset, kwargs["num_workers"]))
        if self.pin and "pin_memory" not in given:
            kwargs["pin_memory"] = True
        return kwargs

    def batches(self, loader, plain_iter):
        """Iterate over a DataLoader's batches; the time of each fetch is recorded."""
        watched = self.watched_for(loader)
        source = None
        given = 0
        watched.open += 1
        try:
            while True:
                begin = time.perf_counter()
                if self.is_removed and self.is_for_training(watched) and len(watched.kept) == REPLAYED_BATCHES:
                    # A subclass with an __iter__ of its own may take all epochs from one iterator.
                    is_plain = type(loader).__iter__ in self.iterators
                    if is_plain and watched.length is not None and given >= watched.length:
                        return
                    batch = watched.replay(self.torch, self.are_copies_removed)
                else:
                    if source is None:
                        source = plain_iter(loader)
                    try:
                        batch = next(source)
                    except StopIteration:
                        return
                    if self.is_removed and self.torch.is_grad_enabled():  # no version is counted in inference mode
                        watched.keep(self.torch, batch)
                given += 1
                self.note_fetch(watched, batch, begin, time.perf_counter())
                yield batch
        finally:
            watched.open -= 1

    def watched_for(self, loader):
        """Return the record of a loader. A loader that is made anew in each epoch shares the record of the first."""
        if loader not in self.loaders:
            made = Loader(loader, self.steps, self.torch.is_grad_enabled())
            earlier_record = next((one for one in self.watched if not one.open and one.is_like(made)), None)
            if earlier_record is None:
                self.watched.append(made)
            self.loaders[loader] = earlier_record or made
        return self.loaders[loader]

    def note_fetch(self, watched, batch, begin, end):
        """Book the wait for a batch, and close the time between steps where the batch is for training."""
        is_for_training = self.is_for_training(watched)
        if self.torch.is_grad_enabled():
            self.fetched_since_step.add(watched)
            watched.fetches += 1
            if is_for_training or self.steps - watched.first_step < 2:
                self.samples_since_step += watched.samples(batch, self.torch)
        if is_for_training:
            self.waited_s += end - begin
            if self.step_end is not None:
                if self.anchor is not None:
                    self.pauses.append((begin, self.step_end, self.ended))
                self.between_s += begin - self.step_end
                self.step_end = None

    def begin_window(self, now, has_end):
        """Count from now on; of a window with an end on a GPU, which is idle now, also when each step ends there."""
        self.waited_s = self.between_s = 0.0
        self.pauses, self.ended = [], self.event() if has_end else None
        self.anchor = (now, self.ended) if has_end else None

    def event(self):
        """Return a mark of the present place in the GPU's work."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self):
        """Return the time between steps since the window began; on a GPU, from a step's end there.

        Else a script that reads its loss after the step would have the whole computation between two steps.
        """
        if self.anchor is None:
            return self.between_s
        begin_s, begun = self.anchor
        self.torch.cuda.synchronize()
        total_s = 0.0
        for fetch, host_end, event in self.pauses:
            total_s += max(0.0, fetch - max(host_end, begin_s + begun.elapsed_time(event) / 1e3))
        return total_s

    def is_for_training(self, watched):
        """Tell a training loader from one for evaluation: most steps follow one of its batches, or most batches a step."""
        steps = self.steps - watched.first_step
        return steps >= 2 and 2 * watched.steps_after > min(steps, watched.fetches)

    def after_step(self, end):
        """Close a step: count it for the loaders that fed it; return its samples."""
        self.steps += 1
        self.end_step(end)
        for watched in self.fetched_since_step:
            watched.steps_after += 1
        self.fetched_since_step.clear()
        samples, self.samples_since_step = self.samples_since_step, 0
        return samples

    def end_step(self, end):
        """Mark the end of a step, within a window on a GPU in its work too."""
        self.step_end = end
        self.ended = self.event() if self.anchor is not None else None

    def extend_step(self):
        """Move the end of the step to now: another optimiser has ended its own."""
        if self.step_end is not None:
            self.end_step(time.perf_counter())

    def loader_facts(self):
        """Return each loader's settings for the record, and whether its kept batches differ in size."""
        facts = []
        for one in self.watched:
            sizes = {sum(each.numel() for each in tensors_of(batch, self.torch)) for batch in one.kept}
            facts.append({**one.settings, "is_for_training": self.is_for_training(one), "differ": len(sizes) > 1})
        return facts


class Loader:
    """A DataLoader of the script, and the batches of it that are kept for replay."""

    def __init__(self, loader, first_step, with_gradients):
        """Take the loader's settings, and the number of steps before it; the loader itself is not kept alive."""
        self.first_step, self.with_gradients = first_step, with_gradients
        self.open = 0  # its iterations that go on
        dataset = getattr(loader, "dataset", None)
        self.dataset_id = id(dataset)
        try:
            self.dataset = weakref.ref(dataset)
        except TypeError:  # a list is known by its place alone, or it would be kept alive
            self.dataset = None
        self.settings = {
            "batch_size": getattr(loader, "batch_size", None),
            "num_workers": loader.num_workers,
            "pin_memory": loader.pin_memory,
        }
        try:
            self.length = len(loader)
        except Exception:  # whatever a sampler without a length raises
            self.length = None
        self.counts_samples = None
        self.steps_after = self.replayed = self.fetches = 0
        self.kept = []
        self.given = []
        self.is_mutated = False

    def is_like(self, other):
        """Tell whether another loader gives the batches of this one: of the same dataset, in the same way."""
        same = (self.settings, self.length, self.with_gradients) == (other.settings, other.length, other.with_gradients)
        is_alive = self.dataset is None or self.dataset() is not None
        return same and is_alive and self.dataset_id == other.dataset_id

    def samples(self, batch, torch):
        """Count the samples of a batch by its first tensor, or take the loader's batch size where the first batch disagrees."""
        lengths = (tensor.size(0) for tensor in tensors_of(batch, torch) if tensor.dim())
        counted, size = next(filter(None, lengths), 0), self.settings["batch_size"]
        if self.counts_samples is None:  # the first batch is a whole one
            # A loader of single samples may be one of whole batches, which the dataset gives.
            parts = list(batch.values()) if isinstance(batch, dict) else batch
            first = parts[0] if isinstance(parts, (list, tuple)) and parts else batch
            whole = size == 1 and isinstance(first, torch.Tensor)
            self.counts_samples = size in (None, counted) or whole or self.length == 1
        return counted if self.counts_samples else size

    def keep(self, torch, batch):
        """Keep a copy of one of the first batches."""
        self.look_for_change()
        if len(self.kept) < REPLAYED_BATCHES:
            self.kept.append(mapped(batch, copied, torch))
        self.hand_out(torch, batch)

    def hand_out(self, torch, batch):
        """Remember the versions of a batch's tensors: the script may work on them in place."""
        self.given = [(tensor, tensor._version) for tensor in tensors_of(batch, torch)]

    def look_for_change(self):
        """Note whether the script changed the batch that it was given last."""
        self.is_mutated |= any(tensor._version != version for tensor, version in self.given)

    def replay(self, torch, on_device):
        """Return a kept batch: its own containers, and its own tensors where the script changes them in place."""
        self.look_for_change()
        if on_device and self.replayed == 0:
            self.kept = [mapped(batch, lambda tensor: tensor.cuda(), torch) for batch in self.kept]
        batch = self.kept[self.replayed % REPLAYED_BATCHES]
        self.replayed += 1
        change = copied if self.is_mutated else (lambda tensor: tensor)
        batch = mapped(batch, change, torch)
        if not self.is_mutated:
            self.hand_out(torch, batch)
        return batch


def tensors_of(batch, torch):
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, torch.Tensor):
        yield batch
        return
    if not isinstance(batch, (dict, list, tuple)):
        batch = vars(batch) if dataclasses.is_dataclass(batch) else getattr(batch, "data", ())
    for part in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ():
        yield from tensors_of(part, torch)


def copied(tensor):
    """Copy a tensor, into pinned memory where it lay there: a copy from other memory to a GPU takes longer."""
    copy_of = tensor.detach().clone()
    return copy_of.pin_memory() if tensor.is_pinned() else copy_of


def mapped(batch, change, torch):
    """Copy a batch's containers, with `change` applied to each tensor."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict):
        out = copy.copy(batch)
        for key, value in batch.items():
            out[key] = mapped(value, change, torch)
        return out
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change, torch) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(mapped(value, change, torch) for value in batch)
    if isinstance(getattr(batch, "data", None), dict) or dataclasses.is_dataclass(batch):  # BatchEncoding and its like
        out = copy.copy(batch)
        for name, value in vars(batch).items():
            object.__setattr__(out, name, mapped(value, change, torch))
        return out
    return batch
