"""Words that users bring from other tools, and what they are called here: for the remedies of messages."""

from __future__ import annotations

from collections.abc import Iterable

RANKS = ("ranks",)
RANKS_PER_NODE = ("ranks_per_node",)
THREADS = ("threads_per_rank",)
RATE = ("optimiser.learning_rate",)
PRECISION = ("autocast", "dtype")
ACCUMULATE = ("batch.accumulate",)

KEYS: dict[str, tuple[str, ...]] = {
    "accumulate_grad_batches": ACCUMULATE,
    "accumulation_steps": ACCUMULATE,
    "allow_tf32": ("tf32",),
    "amp": ("autocast",),
    "arch": ("model",),
    "architecture": ("model",),
    "backend": ("strategy",),
    "batch_size": ("batch.per_rank", "batch.global"),
    "channels_last": ("memory_format",),
    "cpus_per_task": THREADS,
    "dataset": ("data.source",),
    "devices": RANKS,
    "emulate": ("device",),
    "epochs": ("train.epochs",),
    "global_batch": ("batch.global",),
    "global_batch_size": ("batch.global",),
    "gpus": RANKS,
    "gpus_per_node": RANKS_PER_NODE,
    "grad_accumulation": ACCUMULATE,
    "gradient_accumulation": ACCUMULATE,
    "gradient_accumulation_steps": ACCUMULATE,
    "image_size": ("loader.size",),
    "img_size": ("loader.size",),
    "learning_rate": RATE,
    "local_batch_size": ("batch.per_rank",),
    "local_world_size": RANKS_PER_NODE,
    "lr": RATE,
    "max_epochs": ("train.epochs",),
    "max_steps": ("measure.steps",),
    "micro_batch_size": ("batch.per_rank", "batch.accumulate"),
    "mixed_precision": ("autocast",),
    "n_gpus": RANKS,
    "network_name": ("model",),
    "nnodes": ("nodes",),
    "nproc": RANKS,
    "nproc_per_node": RANKS_PER_NODE,
    "ntasks": RANKS,
    "ntasks_per_node": RANKS_PER_NODE,
    "num_epochs": ("train.epochs",),
    "num_gpus": RANKS,
    "num_nodes": ("nodes",),
    "num_processes": RANKS,
    "num_threads": THREADS,
    "num_workers": ("loader.workers",),
    "omp_num_threads": THREADS,
    "optim": ("optimiser",),
    "optimizer": ("optimiser",),
    "per_device_batch_size": ("batch.per_rank",),
    "precision": PRECISION,
    "prefetch_factor": ("loader.prefetch",),
    "processes": RANKS,
    "random_seed": ("seed",),
    "save_steps": ("checkpoint.every_steps",),
    "threads": THREADS,
    "timeout": ("heartbeat_timeout_s",),
    "torch_compile": ("compile",),
    "warmup": ("optimiser.warmup_epochs", "measure.warmup_steps"),
    "warmup_epochs": ("optimiser.warmup_epochs",),
    "wd": ("optimiser.weight_decay",),
    "workers": ("loader.workers",),
    "world_size": RANKS,
}
"""Keys of a run, dotted."""

VALUES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("allreduce",),
    "bf16": ("bfloat16",),
    "cifar10": ("caltech256", "image_folder"),
    "cifar100": ("caltech256", "image_folder"),
    "cnn": ("small_cnn",),
    "data_parallel": ("allreduce",),
    "ddp": ("allreduce",),
    "deepspeed": ("zero1", "fsdp"),
    "distributed_data_parallel": ("allreduce",),
    "double": ("float64",),
    "dp": ("allreduce",),
    "dummy": ("synthetic",),
    "fake": ("synthetic",),
    "fp16": ("float16",),
    "fp32": ("float32",),
    "fp64": ("float64",),
    "fully_sharded": ("fsdp",),
    "gloo": ("allreduce",),
    "gpipe": ("pipeline",),
    "half": ("float16",),
    "hogwild": ("async_parameter_server",),
    "mnist": ("digits", "fashion_mnist"),
    "nccl": ("allreduce",),
    "none": ("single",),
    "pp": ("pipeline",),
    "ps": ("parameter_server",),
    "random": ("synthetic",),
    "recursive_halving": ("halving_doubling",),
    "resnet": ("resnet50", "small_resnet"),
    "rhd": ("halving_doubling",),
    "tree": ("halving_doubling",),
    "vgg": ("vgg16", "small_vgg"),
    "zero": ("zero1", "fsdp"),
    "zero2": ("zero1", "fsdp"),
    "zero3": ("fsdp",),
}
"""Names of strategies, models, data sources and number types."""

ABSENT: dict[str, str] = {
    **dict.fromkeys(
        ("adam", "adamw", "lamb", "lars", "rmsprop", "adagrad"), "the one optimiser is `sgd`, with momentum"
    ),
    **dict.fromkeys(
        ("float16", "fp16", "half", "amp"), "for mixed precision leave `dtype` out and set `autocast: float16`"
    ),
    **dict.fromkeys(
        ("bert", "gpt2", "gpt", "llama", "transformer"),
        "the models here classify images; add another as `{import: file:Class}` from config/extensions/",
    ),
}
"""What there is in the place of a value that does not exist."""


def meant_keys(word: str, valid: Iterable[str]) -> str:
    """A remedy that names the keys that a foreign word stands for; empty where none of them is valid."""
    return _remedy(KEYS.get(_plain(word.rpartition(".")[2]), ()), valid)


def meant_values(word: str, valid: Iterable[str]) -> str:
    """As `meant_keys`, for the name of a strategy, model, data source or number type."""
    return _remedy(VALUES.get(_plain(word), ()), valid) or ABSENT.get(_plain(word), "")


def _plain(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")


def _remedy(meant: Iterable[str], valid: Iterable[str]) -> str:
    known = set(valid)
    found = [f"`{name}`" for name in meant if name in known]
    return f"did you mean {' or '.join(found)}?" if found else ""
