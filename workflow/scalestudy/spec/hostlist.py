"""Names of nodes as Slurm writes many of them: `node[1-2,07]`. Source: scontrol(1), "hostlist expressions"."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence

MAX_HOSTS = 100_000
"""More names than that are a mistake, and would fill the memory."""


def slurm_hosts(text: str) -> list[str]:
    """`node[1-2,07],r[1-2]n1` as [node1, node2, node07, r1n1, r2n1]. ValueError, with a sentence, for a range that is none."""
    hosts: list[str] = []
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", text)):
        raise ValueError(f"`{text}` has a bracket without its other one")
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        texts = re.split(r"\[([^\]]*)\]", part)  # what stands in brackets is at odd places
        pieces = [_numbers(piece) if index % 2 else [piece] for index, piece in enumerate(texts)]
        if len(hosts) + math.prod(map(len, pieces)) > MAX_HOSTS:
            raise ValueError(f"`{text}` names more than {MAX_HOSTS:,} nodes")
        hosts += ["".join(names) for names in itertools.product(*pieces)]
    return hosts


def _numbers(ranges: str) -> list[str]:
    """`1-3,07` as [1, 2, 3, 07]; numbers keep the width of the first of a range."""
    numbers: list[str] = []
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if not first.isdigit() or (dash and not (last.isdigit() and int(first) <= int(last) < int(first) + MAX_HOSTS)):
            raise ValueError(f"`{item}` is not a range of numbers such as 01-16")
        numbers += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)] if dash else [first]
    return numbers


def places(names: Sequence[str], hosts: Sequence[str]) -> list[int | None]:
    """Find each name among hosts; its index, or None.

    Whole names are compared first. A first label decides only where it is unique among the names and among the hosts:
    c1.rack1 and c1.rack2 are two nodes.
    """
    whole = {host: index for index, host in enumerate(hosts)}
    labels = {_first_label(host): index for index, host in enumerate(hosts)}
    counts = Counter(map(_first_label, whole))
    name_counts = Counter(map(_first_label, dict.fromkeys(names)))
    is_unique = {label for label in labels if counts[label] == name_counts[label] == 1}
    return [whole.get(name, labels[label] if (label := _first_label(name)) in is_unique else None) for name in names]


def _first_label(host: str) -> str:
    return host if re.fullmatch(r"[\d.]+|.*:.*", host) else host.partition(".")[0]
