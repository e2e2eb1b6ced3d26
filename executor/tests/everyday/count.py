"""Counts the words of a file; run by Snakemake's `script:`."""

from pathlib import Path

words = Path(snakemake.input[0]).read_text().split()  # type: ignore[name-defined] # noqa: F821
Path(snakemake.output[0]).write_text(f"{len(words)} words\n")  # type: ignore[name-defined] # noqa: F821
