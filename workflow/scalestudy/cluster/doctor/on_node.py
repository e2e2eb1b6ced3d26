"""`python -m scalestudy.cluster.doctor.on_node FOLDER TOKEN INDEX`: the probe of one node, as a launcher starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from scalestudy.cluster.doctor.probe import main

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
