"""`machine: auto`: a machine file of this host, named after its accelerator, with that one's data sheet."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError, raise_all
from scalestudy.files import read_table, write_text
from scalestudy.hardware import ON_PURPOSE, Accelerators, accelerators
from scalestudy.limits import usable_cores, usable_memory_bytes
from scalestudy.spec.base import parse
from scalestudy.spec.layout import reference_file
from scalestudy.spec.machine import GIB, Machine
from scalestudy.spec.yamlfile import read_yaml

AUTO = "auto"
NAMED = "SCALESTUDY_MACHINE"
"""Environment variable by which the commands that a call starts learn which machine `auto` is."""
FOLDER = Path("config/machines")
KNOWN = reference_file("accelerators")
MAKERS = ("nvidia", "tesla", "geforce", "amd", "instinct", "radeon")
"""Words that a name of a machine does without."""
LONGEST = 48
USE_LOCAL = "choose `machine: local` to measure the CPU"
CLOSE_TO_SHEET = (0.85, 1.02)
"""Of the memory in the data sheet, what a driver reports: less by what ECC and the driver take."""
ALIKE = 0.02
CPUS = Path("/sys/devices/system/cpu")


def auto_machine(folder: Path = FOLDER) -> str:
    """The name of the machine that is here; its file is written where there is none.

    Raises UserError where there is no accelerator that runs can use, and where the file of that name describes another
    machine: measurements on one must not stand beside the other's.
    """
    if named := os.environ.get(NAMED):
        return named
    found = accelerators()
    if not found.count:
        remedy = f"fix that, or choose `machine: local` and {ON_PURPOSE}" if found.unusable else USE_LOCAL
        raise UserError(_nothing(found), "machine: auto", remedy)
    facts = facts_of(found)
    name = name_of(found)
    file = folder / f"{name}.yaml"
    if file.exists():
        raise_all(list(_differences(file, facts)))
    else:
        write_text(file, text_of(facts, sheet_of(found)))
    os.environ[NAMED] = name
    return name


def _nothing(found: Accelerators) -> str:
    if found.devices:
        return f"the accelerator here is one of type `{found.kind}`, which runs cannot use"
    if found.unusable:
        return f"this machine has an accelerator, but it cannot be used: {found.unusable}"
    return f"no accelerator was found here ({found.source}), and the CPU is not used instead"


def name_of(found: Accelerators) -> str:
    """`h100_80gb_hbm3_x8`: the accelerator, without its maker, and how many."""
    words = re.findall(r"[a-z0-9]+", found.devices[0].name.lower())
    kept = [word for word in words if word not in MAKERS] or ["accelerator"]
    text = "_".join(kept)[:LONGEST].rstrip("_")
    return f"{text if text[0].isalpha() else f'gpu_{text}'}_x{found.count}"


def facts_of(found: Accelerators) -> dict[str, Any]:
    """Return the facts of this host, by key of a machine file."""
    first = found.devices[0]
    memory = {"device_memory_gib": round(first.memory_bytes / GIB, 2)} if first.memory_bytes else {}
    names = dict.fromkeys(device.name for device in found.devices)
    return {
        "nodes": 1,
        "devices_per_node": found.count,
        "device": "cuda",
        **({"device_name": " and ".join(names)} if all(names) else {}),
        **memory,
        "cores_per_node": cores(),
        "memory_gib": round(usable_memory_bytes() / GIB, 1),
    }


def cores() -> int:
    """Physical cores that this process may use."""
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        try:
            siblings.add((CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="ascii"))
        except OSError:
            siblings.add(str(cpu))
    return min(len(siblings), usable_cores())


def sheet_of(found: Accelerators, known: Path | None = None) -> Mapping[str, str] | None:
    """The row of the accelerator's data sheet; None where it is not listed, or not all of it was found."""
    known = known or KNOWN
    if len({device.name for device in found.devices}) != 1 or not known.is_file():
        return None
    device = found.devices[0]
    rows = read_table(known, ("device_name", "accelerator", "source", *OF_SHEET), numbers=OF_SHEET)
    row = next((row for row in rows if row["device_name"] == device.name and row["memory_gib"]), None)
    if row is None:
        return None
    least, most = (share * float(row["memory_gib"]) for share in CLOSE_TO_SHEET)
    return row if least <= device.memory_bytes / GIB <= most else None


def text_of(facts: Mapping[str, Any], sheet: Mapping[str, str] | None) -> str:
    """The machine file."""
    day = date.today().isoformat()
    what = facts.get("device_name", "accelerators")
    values = {"description": f"{facts['devices_per_node']} x {what}, found by `machine: auto` on {day}", **facts}
    sources = dict.fromkeys(values, f"found here on {day}")
    of_sheet = from_sheet(sheet) if sheet is not None else {}
    values |= of_sheet
    sources |= dict.fromkeys(of_sheet, sheet["source"] if sheet is not None else "")
    known = (
        ""
        if sheet is not None
        else f"# The data sheet of this accelerator is not in {KNOWN}: set its peaks yourself.\n"
    )
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in values.items()]
    said = [f"  {key}: {json.dumps(value)}\n" for key, value in sources.items()]
    return (
        "# yaml-language-server: $schema=../../workflow/schemas/machine.schema.json\n"
        "# Written by `machine: auto`. Change what is wrong, and add prices: it is not written again.\n"
        f"{known}{''.join(lines)}sources:\n{''.join(said)}"
    )


OF_SHEET = ("memory_gib", "float64", "float32", "tf32", "float16", "bfloat16", "device_memory_gb_per_s",
            "device_link_gb_per_s", "device_watts")  # fmt: skip
"""Columns of numbers of a data sheet."""
PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16")


def from_sheet(sheet: Mapping[str, str]) -> dict[str, Any]:
    """Keys of a machine file from a row of the table, without empty ones."""
    peaks = {name: float(sheet[name]) for name in PRECISIONS if sheet[name]}
    found: dict[str, Any] = {"accelerator": sheet["accelerator"]} if sheet["accelerator"] else {}
    found["peak_tflops"] = peaks
    for key in ("device_memory_gb_per_s", "device_link_gb_per_s"):
        found |= {key: float(sheet[key])} if sheet[key] else {}
    return found | ({"power": {"device_watts": float(sheet["device_watts"])}} if sheet["device_watts"] else {})


def _differences(file: Path, facts: Mapping[str, Any]) -> Iterator[UserError]:
    """Compare an existing machine file with this host."""
    document = read_yaml(file)
    machine, _ = parse(Machine, document.data)
    if machine is None:
        return  # its errors are said where it is read
    for key in ("devices_per_node", "device_name", "cores_per_node", "memory_gib"):
        said, found = getattr(machine, key), facts.get(key)
        alike = said == found
        if isinstance(said, float) and isinstance(found, float):
            alike = abs(said - found) <= ALIKE * found
        if said is not None and found is not None and not alike:
            what = f"says {json.dumps(said)}, and {json.dumps(found)} was found here"
            yield UserError(what, document.where((key,)), "rename the file, or correct it if it is of this machine")
