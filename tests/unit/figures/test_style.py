"""The environment in which figures are drawn."""

from __future__ import annotations

import os
import subprocess
import sys


def test_figures_are_drawn_from_a_notebook_whose_kernel_names_a_backend() -> None:
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    code = "import scalestudy.figures.style; import matplotlib; print(matplotlib.get_backend())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "agg\n", done.stderr
