"""Names of nodes as Slurm writes many of them: `node[1-2,07]`. Source: scontrol(1), "hostlist expressions"."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

MOST_HOSTS = 100_000
"""More names than that are a mistake, and would fill the memory."""


def slurm_hosts(text: str) -> list[str]:
    """`node[1-2,07],r[1-2]n1` as [node1, node2, node07, r1n1, r2n1]. ValueError, with a sentence, for a range that is none."""
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        pieces = [_numbers(piece) if odd else [piece] for odd, piece in _odd(re.split(r"\[([^\]]*)\]", part))]
        if len(hosts) + math.prod(map(len, pieces)) > MOST_HOSTS:
            raise ValueError(f"`{text}` names more than {MOST_HOSTS:,} nodes")
        hosts += ["".join(names) for names in itertools.product(*pieces)]
    return hosts


def _odd(items: list[str]) -> list[tuple[int, str]]:
    return [(index % 2, item) for index, item in enumerate(items)]


def _numbers(ranges: str) -> list[str]:
    """`1-3,07` as [1, 2, 3, 07]; numbers keep the width of the first of a range."""
    found: list[str] = []
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if not first.isdigit() or (dash and not (last.isdigit() and int(first) <= int(last) < int(first) + MOST_HOSTS)):
            raise ValueError(f"`{item}` is not a range of numbers such as 01-16")
        found += [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)] if dash else [first]
    return found


def folded(hosts: Iterable[str]) -> list[str]:
    """The same names with runs of numbers as ranges: node1, node2, node3, login as [`node[1-3]`, login].

    A run has one prefix, one width and no gap; a name with more than one number is counted by its last one.
    """
    found: list[tuple[str, str, str]] = []
    for host in hosts:
        parts = re.fullmatch(r"(.*?)(\d+)(\D*)", host)
        prefix, number, rest = parts.groups() if parts else (host, "", "")
        if found and number and _follows(found[-1], prefix, number, rest):
            first = found[-1][1].partition("-")[0]
            found[-1] = (prefix, f"{first}-{number}", rest)
        else:
            found.append((prefix, number, rest))
    return [
        f"{prefix}[{number}]{rest}" if "-" in number else f"{prefix}{number}{rest}" for prefix, number, rest in found
    ]


def _follows(before: tuple[str, str, str], prefix: str, number: str, rest: str) -> bool:
    first, _, last = before[1].partition("-")
    same = (before[0], before[2]) == (prefix, rest) and bool(first)
    return same and int(number) == int(last or first) + 1 and number == f"{int(number):0{len(first)}d}"


def places(names: Sequence[str], hosts: Sequence[str]) -> list[int | None]:
    """Find each name among hosts; its index, or None.

    Whole names are compared first. A first label decides only where it is unique among the names and among the hosts:
    c1.rack1 and c1.rack2 are two nodes.
    """
    whole = {host: index for index, host in enumerate(hosts)}
    labels = {_first_label(host): index for index, host in enumerate(hosts)}
    counts = Counter(map(_first_label, whole))
    asked = Counter(map(_first_label, dict.fromkeys(names)))

    def place(name: str) -> int | None:
        label = _first_label(name)
        return whole.get(name, labels.get(label) if counts[label] == asked[label] == 1 else None)

    return [place(name) for name in names]


def _first_label(host: str) -> str:
    return host if re.fullmatch(r"[\d.]+|.*:.*", host) else host.partition(".")[0]
