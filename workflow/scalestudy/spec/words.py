"""Words of other tools for keys and names of a run; messages suggest ours."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "amp": ("autocast",),
    "backend": ("strategy",),
    "batch_size": ("batch.per_rank", "batch.global"),
    "bf16": ("bfloat16",),
    "cifar10": ("image_folder",),
    "dataset": ("data.source",),
    "ddp": ("allreduce",),
    "devices": ("ranks",),
    "fp16": ("float16", "autocast"),
    "gpus": ("ranks",),
    "gradient_accumulation_steps": ("batch.accumulate",),
    "lr": ("optimiser.learning_rate",),
    "max_epochs": ("train.epochs",),
    "mixed_precision": ("autocast",),
    "nccl": ("allreduce",),
    "nnodes": ("nodes",),
    "nproc_per_node": ("ranks_per_node",),
    "num_workers": ("loader.workers",),
    "precision": ("dtype", "autocast"),
    "world_size": ("ranks",),
}
