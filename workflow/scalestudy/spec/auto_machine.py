"""`machine: auto`: a machine file of this host, named after its accelerator, with that one's data sheet."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from scalestudy.errors import UserError, raise_all
from scalestudy.files import read_table, write_text
from scalestudy.hardware import ON_PURPOSE, Accelerators, accelerators
from scalestudy.limits import usable_cores, usable_memory_bytes
from scalestudy.spec.base import parse
from scalestudy.spec.layout import MACHINES, reference_file
from scalestudy.spec.machine import GIB, Machine
from scalestudy.spec.yamlfile import read_yaml

NAMED = "SCALESTUDY_MACHINE"
"""Environment variable by which the commands that a call starts learn which machine `auto` is."""
KNOWN = reference_file("accelerators")
MAKERS = ("nvidia", "tesla", "geforce", "amd", "instinct", "radeon")
"""Words that a name of a machine does without."""
PRECISIONS = ("float64", "float32", "tf32", "float16", "bfloat16")
NUMBERS = (*PRECISIONS, "device_link_gb_per_s")
"""Columns of numbers in a data sheet."""
CPUS = Path("/sys/devices/system/cpu")


def auto_machine(folder: Path = MACHINES) -> str:
    """The name of the machine that is here; its file is written where there is none.

    Raises UserError where there is no accelerator that runs can use, and where the file of that name describes another
    machine: measurements on one must not stand beside the other's.
    """
    if named := os.environ.get(NAMED):
        return named
    hardware = accelerators()
    if not hardware.count:
        what = hardware.refusal or f"no accelerator was found here ({hardware.source}), and the CPU is not used instead"
        how = f", and {ON_PURPOSE}" if hardware.refusal else " to measure the CPU"
        raise UserError(what, "machine: auto", f"choose `machine: local`{how}")
    facts, name = facts_of(hardware), name_of(hardware)
    file = folder / f"{name}.yaml"
    if file.exists():
        _refuse_another(file, facts)
    else:
        write_text(file, text_of(facts, sheet_of(hardware)))
    os.environ[NAMED] = name
    return name


def name_of(hardware: Accelerators) -> str:
    """`h100_80gb_hbm3_x8`: the accelerator, without its maker, and how many."""
    words = re.findall(r"[a-z0-9]+", hardware.devices[0].name.lower())
    text = "_".join([word for word in words if word not in MAKERS] or ["accelerator"])[:48].rstrip("_")
    return f"{text if text[0].isalpha() else f'gpu_{text}'}_x{hardware.count}"


def facts_of(hardware: Accelerators) -> dict[str, Any]:
    """Return the facts of this host, by key of a machine file."""
    names = dict.fromkeys(device.name for device in hardware.devices)
    facts = {
        "nodes": 1,
        "devices_per_node": hardware.count,
        "device": "cuda",
        "device_name": " and ".join(names) if all(names) else None,
        "cores_per_node": cores(),
        "memory_gib": round(usable_memory_bytes() / GIB, 1),
    }
    return {key: value for key, value in facts.items() if value is not None}


def cores() -> int:
    """Physical cores that this process may use."""
    files = {cpu: CPUS / f"cpu{cpu}/topology/thread_siblings_list" for cpu in os.sched_getaffinity(0)}
    siblings = {file.read_text(encoding="ascii") if file.exists() else str(cpu) for cpu, file in files.items()}
    return min(len(siblings), usable_cores())


def sheet_of(hardware: Accelerators) -> Mapping[str, str] | None:
    """The row of the accelerator's data sheet; None where it is not listed."""
    if len({device.name for device in hardware.devices}) != 1 or not KNOWN.is_file():
        return None
    rows = read_table(KNOWN, ("device_name", "source"), numbers=NUMBERS)
    return next((row for row in rows if row["device_name"] == hardware.devices[0].name), None)


def text_of(facts: Mapping[str, Any], sheet: Mapping[str, str] | None) -> str:
    """The machine file."""
    day = date.today().isoformat()
    what = f"{facts['devices_per_node']} x {facts.get('device_name', 'accelerators')}"
    lines = [
        "# yaml-language-server: $schema=../../workflow/schemas/machine.schema.json",
        "# Written by `machine: auto`. Change what is wrong, and add prices: it is not written again.",
    ]
    keys = {"description": f"{what}, found by `machine: auto` on {day}", **facts}
    if sheet is None:
        lines.append(f"# The data sheet of this accelerator is not in {KNOWN}: set its peaks yourself.")
    else:
        numbers = {name: float(sheet[name]) for name in NUMBERS if sheet.get(name)}
        peaks = {name: numbers[name] for name in PRECISIONS if name in numbers}
        link = numbers.get("device_link_gb_per_s")
        stated = {"accelerator": sheet.get("accelerator") or None, "peak_tflops": peaks, "device_link_gb_per_s": link}
        stated = {key: value for key, value in stated.items() if value is not None}
        keys |= {**stated, "sources": dict.fromkeys(stated, sheet["source"])}
    return "\n".join([*lines, *(f"{key}: {json.dumps(value)}" for key, value in keys.items()), ""])


def _refuse_another(file: Path, facts: Mapping[str, Any]) -> None:
    """UserError where a machine file differs from this host; memory may by 2 %. Its own errors are raised where it is read."""
    document = read_yaml(file)
    machine, _ = parse(Machine, document.data)
    errors = []
    for key in ("devices_per_node", "device_name", "cores_per_node", "memory_gib"):
        stated, fact = getattr(machine, key, None), facts.get(key)
        is_close = key == "memory_gib" and stated and fact and abs(stated - fact) <= 0.02 * fact
        if None not in (stated, fact) and stated != fact and not is_close:
            what = f"says {json.dumps(stated)}, and {json.dumps(fact)} was found here"
            remedy = "rename the file, or correct it if it is of this machine"
            errors.append(UserError(what, document.where((key,)), remedy))
    raise_all(errors)
