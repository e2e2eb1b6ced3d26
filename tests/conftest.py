"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scalestudy import processes

ROOT = Path(__file__).resolve().parent.parent

# A loaded machine makes any example slow: that is no failure. A machine with a GPU may lack hypothesis.
with suppress(ImportError):
    import hypothesis

    no_times = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile("no times", **no_times)
    hypothesis.settings.load_profile("no times")

# What is imported stays: looking for garbage among it again and again takes an eighth of the time until the first test.
gc.set_threshold(100_000, 20, 20)


# A shell that starts tests in the background has them ignore SIGINT, and with them what they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests of one TMPDIR keep their measured runs apart; those of other checkouts on this host do not wait for them.
os.environ.setdefault("SCALESTUDY_LOCKS", tempfile.gettempdir())


@pytest.fixture(scope="session", autouse=True)
def _own_warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests are the driver of what they start: it has a warm server, which ends with them.

    Where several processes of pytest-xdist share the tests, they share the server too: starting one takes seconds. The
    runs of one process do not wait for those of another.
    """
    with pytest.MonkeyPatch.context() as patch:
        driver = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        patch.setenv(processes.DRIVER, processes.identity(driver) or "")
        # As in Snakemake's jobs, which then use the same server: there is one for each value of these.
        for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
            patch.setenv(f"{library}_NUM_THREADS", "1")
        if "PYTEST_XDIST_WORKER" in os.environ:
            patch.setenv("SCALESTUDY_LOCKS", str(tmp_path_factory.mktemp("locks")))
        yield
