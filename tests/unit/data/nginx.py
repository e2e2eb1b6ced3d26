"""A real nginx on a port of loopback that the kernel chose, with a folder of its own; for tests and benchmarks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG = """
daemon off; worker_processes {workers}; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log {log}; sendfile on; tcp_nopush on; keepalive_requests 1000000; types {{ }} default_type application/octet-stream;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ root {root}; }} }}
}}
"""
START_S = 20.0


def program() -> str | None:
    """Path of nginx, where it is installed."""
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@contextmanager
def serving(root: Path, folder: Path, workers: int = 1, log: str = "off") -> Iterator[str]:
    """Yield the address at which `root` is served; nginx ends with the block. `folder` holds what it writes."""
    found = program()
    assert found is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    where = log if log == "off" else f"{folder}/{log}"
    (folder / "nginx.conf").write_text(CONFIG.format(folder=folder, root=root, port=port, workers=workers, log=where))
    root.chmod(0o755)
    user = ["-g", "user root;"] if os.geteuid() == 0 else []
    command = [found, "-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", str(folder / "error.log"), *user]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < deadline, (folder / "error.log").read_text()
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
