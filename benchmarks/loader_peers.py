"""The loaders that benchmarks/loader.py compares, each a function that gives batches for ever.

    python loader_peers.py PEER CORES KIND FOLDER     KIND: uint8 or float32

Runs in the peer's own environment. Loads when told to: for each line `SECONDS` on the standard input it answers one
line of JSON with images, wall seconds and CPU seconds of the whole process tree, after half a second of warm-up. Every
loader shows a random resized crop to 224 with a random flip of the same files, shuffled, in batches of 64: uint8 in the
memory layout that suits it best, or normalised float32 [64, 3, 224, 224].
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BATCH, SIDE = 64, 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WARM_UP_S = 0.5
Batches = Iterator[Any]
PROCESSES = {"kind": "processes"}


def forever(loader: Any) -> Batches:
    """Epoch after epoch."""
    while True:
        yield from loader


# This project


def ours(folder: Path, cores: int, number: str, manifest: str = "files", **options: Any) -> Batches:
    import torch

    torch.set_num_threads(1)
    from scalestudy.data.load.dataset import open_dataset
    from scalestudy.data.load.loader import Loader
    from scalestudy.data.load.normalise import normalise
    from scalestudy.data.load.sampler import batches
    from scalestudy.spec import run

    spec = run.Loader(**{"workers": cores, "augment": "crop_flip", "size": SIDE, **options})
    data = open_dataset(folder / manifest / "manifest.json", "train", spec)

    def plan() -> Iterator[tuple[int, Any]]:
        for epoch in range(10**6):
            for indices in batches(data.samples, BATCH, 0, 1, 0, epoch, stream=data.stream):
                yield epoch, indices

    for x, y in Loader(data, plan(), spec, seed=0):
        yield (x if number == "uint8" else normalise(x, torch.float32, "cpu")), y


def ours_processes(folder: Path, cores: int, kind: str) -> Batches:
    return ours(folder, cores, kind, **PROCESSES)


def ours_plain(folder: Path, cores: int, kind: str) -> Batches:
    os.environ["SCALESTUDY_KERNEL"] = "0"
    return ours(folder, cores, kind)


def ours_raw(folder: Path, cores: int, kind: str) -> Batches:
    return ours(folder, cores, kind, "raw")


# torch and torchvision


def transform(kind: str, pil: bool) -> Any:
    """torchvision's v2 transforms, from a PIL image or a uint8 tensor."""
    import torch
    from torchvision.transforms import v2

    steps: list[Any] = [v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()]
    if pil:
        steps.append(v2.PILToTensor())
    if kind == "float32":
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)]
    return v2.Compose(steps)


def torch_loader(dataset: Any, cores: int, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, BATCH, num_workers=cores, persistent_workers=True, drop_last=True, prefetch_factor=2, **options
    )


class Files:
    """A map-style dataset of files."""

    def __init__(self, folder: Path, read: Callable[[str], Any]) -> None:
        self.paths = [str(path) for path in sorted((folder / "files/bulk/train").rglob("*.jpg"))]
        self.read = read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.read(self.paths[index]), index % 10


def torchvision_pil(folder: Path, cores: int, kind: str) -> Batches:
    from PIL import Image

    shown = transform(kind, pil=True)
    return forever(
        torch_loader(Files(folder, lambda path: shown(Image.open(path).convert("RGB"))), cores, shuffle=True)
    )


def torchvision_io(folder: Path, cores: int, kind: str) -> Batches:
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    shown = transform(kind, pil=False)
    return forever(
        torch_loader(
            Files(folder, lambda path: shown(decode_jpeg(read_file(path), ImageReadMode.RGB))), cores, shuffle=True
        )
    )


def torchcodec(folder: Path, cores: int, kind: str) -> Batches:
    from torchcodec.decoders import decode_jpeg

    shown = transform(kind, pil=False)
    return forever(torch_loader(Files(folder, lambda path: shown(decode_jpeg(path, mode="RGB"))), cores, shuffle=True))


def webdataset(folder: Path, cores: int, kind: str, fast: bool = False) -> Batches:
    import torch
    import webdataset as wds
    from torchvision.io import ImageReadMode, decode_jpeg

    shards = [str(path) for path in sorted((folder / "tar/bulk").glob("train-*.tar"))]
    data = wds.WebDataset(shards, resampled=True, shardshuffle=False, nodesplitter=None).shuffle(1000)
    shown = transform(kind, pil=not fast)
    if fast:

        def decoded(data: bytes) -> Any:
            return shown(decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB))

        data = data.to_tuple("jpg", "cls").map_tuple(decoded, int)
    else:
        data = data.decode("pil").to_tuple("jpg", "cls").map_tuple(shown, int)
    return iter(wds.WebLoader(data.batched(BATCH), batch_size=None, num_workers=cores, persistent_workers=True))


def webdataset_fast(folder: Path, cores: int, kind: str) -> Batches:
    return webdataset(folder, cores, kind, fast=True)


# Others


def streaming(folder: Path, cores: int, kind: str) -> Batches:
    import torch
    from streaming import MDSWriter, StreamingDataset
    from torchvision.io import ImageReadMode, decode_jpeg

    local = folder / "mds"
    if not (local / "index.json").exists():
        with MDSWriter(out=str(local), columns={"x": "bytes", "y": "int"}) as writer:
            for number, path in enumerate(sorted((folder / "files/bulk/train").rglob("*.jpg"))):
                writer.write({"x": path.read_bytes(), "y": number % 10})
    shown = transform(kind, pil=False)

    class Pictures(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            data = torch.frombuffer(bytearray(sample["x"]), dtype=torch.uint8)
            return shown(decode_jpeg(data, ImageReadMode.RGB)), sample["y"]

    return forever(torch_loader(Pictures(local=str(local), shuffle=True, batch_size=BATCH), cores))


def dali(folder: Path, cores: int, kind: str) -> Batches:
    from nvidia.dali import fn, pipeline_def, types

    files = [str(path) for path in sorted((folder / "files/bulk/train").rglob("*.jpg"))]

    @pipeline_def(batch_size=BATCH, num_threads=cores, device_id=None, prefetch_queue_depth=2)
    def pictures() -> Any:
        data, label = fn.readers.file(files=files, labels=[k % 10 for k in range(len(files))], random_shuffle=True)
        image = fn.decoders.image_random_crop(data, device="cpu", random_area=[0.08, 1.0])
        image = fn.resize(image, size=(SIDE, SIDE), antialias=True)
        flip = fn.random.coin_flip()
        if kind == "uint8":
            return fn.flip(image, horizontal=flip), label
        mean, deviation = ([value * 255 for value in values] for values in (MEAN, DEVIATION))
        return (
            fn.crop_mirror_normalize(
                image, mirror=flip, mean=mean, std=deviation, dtype=types.FLOAT, output_layout="CHW"
            ),
            label,
        )

    pipe = pictures()
    pipe.build()
    while True:
        image, label = pipe.run()
        yield image.as_tensor(), label


def spdl(folder: Path, cores: int, kind: str, whole_batches: bool = False) -> Batches:
    import random

    import torch
    from spdl.pipeline import PipelineBuilder
    from torchvision.io import ImageReadMode, decode_jpeg, read_file

    paths = [str(path) for path in sorted((folder / "files/bulk/train").rglob("*.jpg"))]
    shown = transform(kind, pil=False)
    torch.set_num_threads(1)

    def source() -> Iterator[Any]:
        while True:
            order = random.sample(paths, len(paths))
            yield from ([order[k : k + BATCH] for k in range(0, len(order), BATCH)] if whole_batches else order)

    def one(path: str) -> Any:
        return shown(decode_jpeg(read_file(path), ImageReadMode.RGB))

    def batch(several: list[str]) -> Any:
        return torch.stack([one(path) for path in several])

    builder = PipelineBuilder().add_source(source())
    if whole_batches:
        builder = builder.pipe(batch, concurrency=cores)
    else:
        builder = builder.pipe(one, concurrency=cores).aggregate(BATCH).pipe(torch.stack)
    pipeline = builder.add_sink(2).build(num_threads=cores)
    with pipeline.auto_stop():
        for x in pipeline:
            yield x, x


def spdl_batches(folder: Path, cores: int, kind: str) -> Batches:
    return spdl(folder, cores, kind, whole_batches=True)


def ffcv(folder: Path, cores: int, kind: str, raw: bool = False) -> Batches:
    import numpy as np
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    file = folder / ("raw.beton" if raw else "jpg.beton")
    if not file.exists():
        _write_beton(folder, file, raw, DatasetWriter, RGBImageField, IntField)
    steps = [RandomResizedCropRGBImageDecoder((SIDE, SIDE)), RandomHorizontalFlip()]
    if kind == "float32":
        scaled = [np.array(values) * 255 for values in (MEAN, DEVIATION)]
        steps.append(NormalizeImage(*scaled, np.float32))
    steps += [ToTensor(), ToTorchImage(convert_back_int16=False)]
    labels = [IntDecoder(), ToTensor()]
    return forever(
        Loader(
            str(file), batch_size=BATCH, num_workers=cores, order=OrderOption.RANDOM, os_cache=True, drop_last=True,
            pipelines={"image": steps, "label": labels},
        )
    )  # fmt: skip


def _write_beton(folder: Path, file: Path, raw: bool, writer: Any, image: Any, label: Any) -> None:
    import numpy as np

    if raw:
        pixels = np.load(folder / "raw/bulk/train.npy", mmap_mode="r")

        class Source:
            def __len__(self) -> int:
                return len(pixels)

            def __getitem__(self, index: int) -> Any:
                return np.array(pixels[index]), index % 10

        writer(str(file), {"image": image(write_mode="raw"), "label": label()}).from_indexed_dataset(Source())
        return
    from PIL import Image

    files = Files(folder, lambda path: Image.open(path).convert("RGB"))
    # Written again as JPEG by FFCV itself, at the quality that gives the same size.
    writer(str(file), {"image": image(write_mode="jpg", jpeg_quality=90), "label": label()}).from_indexed_dataset(files)


def ffcv_raw(folder: Path, cores: int, kind: str) -> Batches:
    return ffcv(folder, cores, kind, raw=True)


def full_decode(folder: Path, cores: int, kind: str) -> Batches:
    """libjpeg-turbo alone: every image decoded whole, nothing else; not a loader but a yardstick."""
    import queue
    import threading

    import simplejpeg

    paths = sorted((folder / "files/bulk/train").rglob("*.jpg"))
    done: queue.Queue[Any] = queue.Queue(2 * cores)

    def decode() -> None:
        while True:
            for begin in range(0, len(paths) - BATCH + 1, BATCH):
                for path in paths[begin : begin + BATCH]:
                    simplejpeg.decode_jpeg(path.read_bytes(), "RGB")
                done.put(range(BATCH))

    for _ in range(cores):
        threading.Thread(target=decode, daemon=True).start()
    while True:
        got = done.get()
        yield got, got


PEERS: dict[str, Callable[[Path, int, str], Batches]] = {
    function.__name__: function
    for function in (
        ours, ours_processes, ours_plain, ours_raw, torchvision_pil, torchvision_io, torchcodec, webdataset,
        webdataset_fast, streaming, dali, spdl, spdl_batches, ffcv, ffcv_raw, full_decode,
    )
}  # fmt: skip


def count(batch: Any) -> int:
    """Images in a batch."""
    x = batch[0]
    shape = x.shape() if callable(getattr(x, "shape", None)) else getattr(x, "shape", (BATCH,))
    return int(shape[0])


def tree_cpu_s() -> float:
    """User and system time of this process and all below it, those that have ended included, seconds."""
    import psutil

    me = psutil.Process()
    own = me.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in me.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


def measure(batches: Batches, seconds: float) -> dict[str, float]:
    """Images, wall and CPU seconds of a window, after a warm-up."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP_S:
        next(batches)
    images, cpu_s, begin = 0, tree_cpu_s(), time.perf_counter()
    while (wall_s := time.perf_counter() - begin) < seconds:
        images += count(next(batches))
    return {"images": images, "wall_s": wall_s, "cpu_s": tree_cpu_s() - cpu_s}


def checked(batch: Any, kind: str) -> None:
    """The first batch must be images: of the right type, and not all the same."""
    import numpy as np

    x = batch[0]
    array = np.asarray(x)
    assert array.size == BATCH * SIDE * SIDE * 3, f"a batch has {array.shape}"
    assert str(array.dtype) == kind, f"a batch is {array.dtype}"
    assert len({array[k].tobytes() for k in range(8)}) == 8, "images are the same"
    if kind == "uint8":
        assert 60 < array.mean() < 190 and array.std() > 15, "these are no images"


def main() -> None:
    """Answer until the standard input ends."""
    peer, cores, kind, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    try:
        batches = PEERS[peer](folder, cores, kind)
        first = next(batches)
        if peer != "full_decode":
            checked(first, kind)
        answers.write(json.dumps({"ready": True}) + "\n")
        for line in sys.stdin:
            answers.write(json.dumps(measure(batches, float(line))) + "\n")
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}) + "\n")
    answers.flush()
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
