"""Hooks in a user's PyTorch script: time its optimiser steps, with one part of a step taken away.

Python imports this file at its start because `scalestudy explain` puts this folder first on PYTHONPATH. The script's own
Python may have neither scalestudy nor its packages, so this file imports the standard library alone, and torch only after
the script has.

`SCALESTUDY_EXPLAIN` holds the request as JSON:

    out      folder for one record per rank, rank.<rank>.json
    warmup   optimiser steps before the window
    steps    optimiser steps of the window; the process ends after them
    remove   parts to take away: loading, copies, exchange
    workers  factor on each DataLoader's num_workers (a worker where there was none)
    pin      pinned host memory in each DataLoader
"""

import atexit
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import weakref

REQUEST = "SCALESTUDY_EXPLAIN"
REPLAYED_BATCHES = 4
"""Batches kept in memory and given again, in turn, where loading is taken away."""
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLD_VARIABLES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
PATIENCE_S = 60.0
"""Longest wait for the records of other ranks before a rank ends: they may still need its connections."""


class Observer:
    """One process of the script: its fetches and optimiser steps, and the part that is taken away."""

    def __init__(self, request):
        """Read the request; nothing is timed before the first optimiser step."""
        self.out = request["out"]
        self.warmup = request["warmup"]
        self.steps = request["steps"]
        self.remove = frozenset(request["remove"])
        self.workers = request.get("workers", 1)
        self.pin = request.get("pin", False)
        self.step_times = []
        self.optimiser = None
        self.loaders = weakref.WeakKeyDictionary()
        self.watched = []
        self.fetched_since_step = set()
        self.waited_s = 0.0
        self.between_s = 0.0
        self.window_waited_s = self.window_between_s = None
        self.between_is_open = False
        self.ddp_modules = 0
        self.fsdp_modules = 0
        self.produced_workers = set()

    def install(self, torch):
        """Put the hooks into torch; called when the script's `import torch` has ended."""
        self.torch = torch
        self.watch_loaders(torch.utils.data.DataLoader)
        self.watch_subclasses(torch.utils.data.DataLoader)
        self.watch_ddp()
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self.after_step)

    # Loading

    def watch_loaders(self, loader_class):
        """Time each batch that a DataLoader gives, and give kept ones where loading is taken away."""
        plain_init, plain_iter = loader_class.__init__, loader_class.__iter__
        observer = self

        def init(loader, *args, **kwargs):
            plain_init(loader, *args, **observer.loader_arguments(plain_init, loader, args, kwargs))

        def iterate(loader):
            return observer.batches(loader, plain_iter)

        if self.workers != 1 or self.pin:
            loader_class.__init__ = init
        loader_class.__iter__ = iterate

    def watch_subclasses(self, loader_class):
        """Watch subclasses that fetch batches themselves; all others call DataLoader.__iter__."""
        observer = self

        def init_subclass(cls, **kwargs):
            # DataLoader has no such method of its own; that of Generic is written in C in some Pythons.
            super(loader_class, cls).__init_subclass__(**kwargs)
            if cls.__module__.startswith("torchdata.stateful_dataloader") and "__iter__" in cls.__dict__:
                observer.watch_loaders(cls)

        loader_class.__init_subclass__ = classmethod(init_subclass)

    def loader_arguments(self, plain_init, loader, args, kwargs):
        """Keyword arguments of a DataLoader, with more workers or pinned memory as requested."""
        names = plain_init.__code__.co_varnames[1 : plain_init.__code__.co_argcount]
        given = names[: len(args)]
        kwargs = dict(kwargs)
        if self.workers != 1 and "num_workers" not in given:
            # Lightning makes each loader anew from the attributes of the first one.
            now = kwargs.get("num_workers", 0)
            if now not in self.produced_workers:
                kwargs["num_workers"] = max(1, round(now * self.workers))
                self.produced_workers.add(kwargs["num_workers"])
        if self.pin and "pin_memory" not in given:
            kwargs["pin_memory"] = True
        return kwargs

    def batches(self, loader, plain_iter):
        """Iterate over a DataLoader's batches; the time of each fetch is recorded."""
        watched = self.loaders.get(loader)
        if watched is None:
            watched = self.loaders[loader] = Loader(loader, len(self.step_times))
            self.watched.append(watched)
        source = None
        given = 0
        while True:
            begin = time.perf_counter()
            if "loading" in self.remove and self.is_for_training(watched) and watched.can_replay():
                if watched.length is not None and given >= watched.length:
                    return
                batch = watched.replay(self.torch, "copies" in self.remove)
            else:
                if source is None:
                    source = plain_iter(loader)
                try:
                    batch = next(source)
                except StopIteration:
                    return
                if self.remove & {"loading"}:
                    watched.keep(self.torch, batch)
            given += 1
            self.note_fetch(watched, begin, time.perf_counter())
            yield batch

    def note_fetch(self, watched, begin, end):
        """Book the wait for a batch, and close the time between steps where the batch is for training."""
        watched.fetches += 1
        if self.torch.is_grad_enabled():
            self.fetched_since_step.add(watched)
        if self.is_for_training(watched):
            self.waited_s += end - begin
            if self.between_is_open:
                self.between_s += begin - self.step_times[-1]
                self.between_is_open = False

    def is_for_training(self, watched):
        """Tell a training loader from one for evaluation: most optimiser steps follow one of its batches."""
        steps = len(self.step_times) - watched.first_step
        return steps >= 2 and 2 * watched.steps_after > steps

    # Exchange

    def watch_ddp(self):
        """Count DistributedDataParallel modules; where exchange is taken away they do not synchronise."""
        ddp = self.torch.nn.parallel.DistributedDataParallel
        plain_init, plain_forward = ddp.__init__, ddp.forward
        observer = self

        def init(module, *args, **kwargs):
            observer.ddp_modules += 1
            plain_init(module, *args, **kwargs)

        def forward(module, *args, **kwargs):
            module.require_backward_grad_sync = False
            return plain_forward(module, *args, **kwargs)

        ddp.__init__ = init
        if "exchange" in self.remove:
            ddp.forward = forward

    def find_fsdp(self):
        """Count FSDP2 modules once, at the first step; where exchange is taken away they do not reduce gradients."""
        import gc

        fsdp = sys.modules.get("torch.distributed.fsdp")
        sharded = getattr(fsdp, "FSDPModule", None)
        if sharded is None:
            return
        for module in [found for found in gc.get_objects() if isinstance(found, sharded)]:
            self.fsdp_modules += 1
            if "exchange" in self.remove:
                module.set_requires_gradient_sync(False, recurse=False)

    # Steps

    def after_step(self, optimiser, _args, _kwargs):
        """Mark the end of an optimiser step; a further optimiser of the same script marks none."""
        if self.optimiser is None:
            self.optimiser = optimiser
            self.find_fsdp()
            atexit.register(self.write, True)
        if optimiser is not self.optimiser:
            return
        done = len(self.step_times) + 1
        if done in (self.warmup, self.warmup + self.steps):
            self.wait_for_device()
        self.step_times.append(time.perf_counter())
        for watched in self.fetched_since_step:
            watched.steps_after += 1
        self.fetched_since_step.clear()
        self.between_is_open = True
        if done == self.warmup:
            self.waited_s = self.between_s = 0.0
        if done == self.warmup + self.steps:
            self.write(False)
            self.leave()

    def wait_for_device(self):
        """Let the window begin and end with an idle device."""
        if self.torch.cuda.is_available() and self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()

    def write(self, has_ended):
        """Write this rank's record; `has_ended` where the script came to its own end first."""
        times = self.step_times[self.warmup - 1 :]
        rank, world = self.place()
        record = {
            "rank": rank,
            "world": world,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "has_ended": has_ended,
            "steps": max(0, len(times) - 1),
            "window_s": times[-1] - times[0] if times else 0.0,
            "waited_s": self.waited_s,
            "between_s": self.between_s,
            "begin": self.step_times[0],
            "loaders": [watched.facts(self.is_for_training(watched)) for watched in self.watched],
            "ddp_modules": self.ddp_modules,
            "fsdp_modules": self.fsdp_modules,
            "is_distributed": self.is_distributed(),
            "is_compiled": self.is_compiled(),
            "on_gpu": self.torch.cuda.is_available() and self.torch.cuda.is_initialized(),
            "parameters": self.checksum(),
        }
        atexit.unregister(self.write)
        file = os.path.join(self.out, f"rank.{rank}.json")
        with open(file + ".part", "w") as part:
            json.dump(record, part)
        os.replace(file + ".part", file)
        self.world = world

    def leave(self):
        """End this process without the script's own end, once all ranks of the script have their records."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if len([name for name in os.listdir(self.out) if name.endswith(".json")]) >= self.world:
                break
            time.sleep(0.02)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def is_distributed(self):
        """Tell whether the script has a process group of more than one rank."""
        dist = self.torch.distributed
        return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)

    def place(self):
        """Return rank and world size, from the process group or the launcher's variables."""
        if self.is_distributed():
            return self.torch.distributed.get_rank(), self.torch.distributed.get_world_size()
        return int(first_variable(RANK_VARIABLES, "0")), int(first_variable(WORLD_VARIABLES, "1"))

    def is_compiled(self):
        """Tell whether torch.compile has compiled anything in this process."""
        utils = sys.modules.get("torch._dynamo.utils")
        return bool(utils is not None and utils.counters["stats"].get("unique_graphs", 0))

    def checksum(self):
        """Return a sum over one parameter: ranks that exchange have the same one."""
        parameter = self.optimiser.param_groups[0]["params"][0].detach()
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        return float(local.double().sum())


class Loader:
    """A DataLoader of the script, and the batches of it that are kept for replay."""

    def __init__(self, loader, first_step):
        """Take the loader's settings, and the number of steps before it; the loader itself is not kept alive."""
        self.first_step = first_step
        self.settings = {
            "class": type(loader).__name__,
            "dataset": type(loader.dataset).__name__,
            "batch_size": getattr(loader, "batch_size", None),
            "num_workers": loader.num_workers,
            "pin_memory": loader.pin_memory,
            "persistent_workers": getattr(loader, "persistent_workers", False),
            "is_iterable": not hasattr(loader.dataset, "__getitem__"),
        }
        try:
            self.length = len(loader)
        except TypeError:
            self.length = None
        self.fetches = self.steps_after = self.replayed = 0
        self.kept = []
        self.given = None
        self.is_mutated = False

    def facts(self, is_for_training):
        """Return settings and counts for the record."""
        return {**self.settings, "length": self.length, "fetches": self.fetches, "is_for_training": is_for_training}

    def keep(self, torch, batch):
        """Keep a copy of one of the first batches."""
        self.look_for_change()
        if len(self.kept) < REPLAYED_BATCHES:
            self.kept.append(mapped(batch, lambda tensor: tensor.detach().clone(), torch))
        self.hand_out(torch, batch)

    def hand_out(self, torch, batch):
        """Remember the versions of a batch's tensors: the script may work on them in place."""
        tensors = []
        mapped(batch, lambda tensor: tensors.append(tensor) or tensor, torch)
        self.given = [(tensor, tensor._version) for tensor in tensors]

    def look_for_change(self):
        """Note whether the script changed the batch that it was given last."""
        if self.given is not None:
            self.is_mutated |= any(tensor._version != version for tensor, version in self.given)

    def can_replay(self):
        """Tell whether enough batches are kept."""
        return len(self.kept) == REPLAYED_BATCHES

    def replay(self, torch, on_device):
        """Return a kept batch: its own containers, and its own tensors where the script changes them in place."""
        self.look_for_change()
        if on_device and self.replayed == 0:
            self.kept = [mapped(batch, lambda tensor: tensor.cuda(), torch) for batch in self.kept]
        batch = self.kept[self.replayed % REPLAYED_BATCHES]
        self.replayed += 1
        change = (lambda tensor: tensor.clone()) if self.is_mutated else (lambda tensor: tensor)
        batch = mapped(batch, change, torch)
        if not self.is_mutated:
            self.hand_out(torch, batch)
        return batch


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
    data = getattr(batch, "data", None)
    if isinstance(data, dict):  # BatchEncoding and its like
        out = copy.copy(batch)
        out.data = mapped(data, change, torch)
        return out
    return batch


def first_variable(names, default):
    """Return the first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), default)


class AfterTorch(importlib.abc.MetaPathFinder):
    """Import hook: installs the observer when `import torch` has ended, once."""

    def __init__(self, observer):
        """Keep the observer until torch is imported."""
        self.observer = observer

    def find_spec(self, name, path=None, target=None):
        """Find torch as Python does, and run the observer after it."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        plain = spec.loader.exec_module

        def exec_module(module):
            plain(module)
            self.observer.install(module)

        spec.loader.exec_module = exec_module
        return spec


def run_shadowed():
    """Run the sitecustomize that this one hides, if the script's Python has one."""
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", folders)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def main():
    """Prepare the hooks in each Python process of the command."""
    request = json.loads(os.environ[REQUEST])
    with open(os.path.join(request["out"], f"hooked.{os.getpid()}"), "w"):
        pass
    sys.meta_path.insert(0, AfterTorch(Observer(request)))


if REQUEST in os.environ:
    main()
run_shadowed()
