"""A real nginx with the files of a dataset, on an emulated node of its own: the storage at the other end of a link.

It stands for an object store or another server of files. Requests, connections and the kernel's TCP are real; the link is
that of the emulated network. It is ended with the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scalestudy.emulation.network import EmulatedNode, command_on
from scalestudy.errors import Skipped
from scalestudy.files import tail

PORT = 80
START_S = 10.0
# Paths are relative to the server's folder, so that none has to be quoted. One process, which ends with the one that started
# it: a worker of nginx outlives its master. In the namespace it is root, whoever that is outside, and may know no other user.
CONFIG = f"""\
user root; daemon off; master_process off; pid pid; error_log errors warn;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout 1h;
    types {{ }} default_type application/octet-stream;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    server {{ listen {PORT}; root data; }}
}}
"""


@contextmanager
def file_server(node: EmulatedNode, data: Path) -> Iterator[tuple[str, int]]:
    """Serve the files below `data` on a node; yields their address and the process. Raises Skipped without nginx."""
    nginx = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if nginx is None:
        raise Skipped("`loader.origin: nginx` needs nginx (Debian: nginx-light)")
    with tempfile.TemporaryDirectory(prefix="scalestudy-nginx-") as name:
        folder = Path(name)
        (folder / "data").symlink_to(data.resolve())
        (folder / "conf").write_text(CONFIG, encoding="ascii")
        command = [nginx, "-p", name, "-c", "conf", "-e", "errors"]
        server = subprocess.Popen(command_on(node, command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            deadline = time.monotonic() + START_S
            while not (folder / "pid").exists():  # written once it listens
                if server.poll() is not None or time.monotonic() > deadline:
                    raise Skipped(f"nginx does not start here: {tail(folder / 'errors').strip() or 'it says nothing'}")
                time.sleep(0.01)
            yield f"http://{node.address}:{PORT}", server.pid
        finally:
            server.kill()
            server.wait()
