"""Rates of a machine's links, as its runs of the study `probe` measured them, in its machine file."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from scalestudy.analysis.stats import interval_of, with_interval
from scalestudy.analysis.summarise import study_rows
from scalestudy.errors import UserError
from scalestudy.files import write_text
from scalestudy.spec.config import read_machine
from scalestudy.spec.layout import machine_file
from scalestudy.spec.machine import geometry
from scalestudy.spec.study import Study

BUFFER_KIB = 65536
"""Of the all-reduces that count: where a step of them is hardly latency."""
LINKS = {"device_link_gb_per_s": 2e-9, "network_gb_per_s": 1e-9}
"""GB/s per byte a second of bus bandwidth, which is that of the narrowest link in one direction (nccl-tests,
doc/PERFORMANCE.md); the link between GPUs is stated for both directions together."""


def write_links(study: Study, name: str) -> str:
    """Write what `probe` measured into the file of its machine, each value with its source; return the lines.

    Of several numbers of ranks, the least that crosses a link counts. Raises UserError where no run tells any rate.
    """
    machine, file = read_machine(name), machine_file(name)
    rows_by_link: dict[str, dict[int, list[Mapping[Any, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run, row in zip(study.runs, study_rows(study, name).to_dict("records"), strict=True):
        if row["status"] != "valid" or row.get("part") != "allreduce" or row.get("buffer_kib") != BUFFER_KIB:
            continue
        nodes, _ = geometry(run.spec, machine)
        if nodes > 1:
            rows_by_link["network_gb_per_s"][run.spec.ranks].append(row)
        elif (run.spec.device or machine.device) == "cuda":
            rows_by_link["device_link_gb_per_s"][run.spec.ranks].append(row)
    values: dict[str, tuple[float, str]] = {}
    for link, by_ranks in rows_by_link.items():
        ranks, rows = min(by_ranks.items())
        if (rate := interval_of(rows, "bytes_per_s")) is not None:
            day = max(str(row["started"]) for row in rows)[:10]
            text = with_interval(rate.mean, rate.low, rate.high, factor=1 / LINKS[link])
            source = f"study probe, {day}: all-reduce of 64 MiB on {ranks} ranks, {text} GB/s, n = {rate.n}"
            values[link] = float(f"{LINKS[link] * rate.mean:.3g}"), source
    if not values:
        what = (
            f"no valid run of probe at scale {study.scale} exchanges 64 MiB between GPUs or nodes of machine `{name}`"
        )
        raise UserError(what, "--links", "measure it first: snakemake probe, with the same profile and --config")
    _write(Path(file), values)
    return "\n".join([f"{file}:", *(f"  {link}: {value:g}  # {source}" for link, (value, source) in values.items())])


def _write(file: Path, values: Mapping[str, tuple[float, str]]) -> None:
    """Set keys and their sources in a machine file; everything else stays, comments too."""
    yaml, text = YAML(), io.StringIO()
    yaml.preserve_quotes, yaml.width = True, 10_000
    tree = yaml.load(file.read_text(encoding="utf-8"))
    sources = tree.setdefault("sources", {})
    for key, (value, source) in values.items():
        if key not in tree:
            tree.insert(len(tree) - 1, key, value)  # not after `sources`, which are long
        tree[key], sources[key] = value, source
    yaml.dump(tree, text)
    write_text(file, text.getvalue())
