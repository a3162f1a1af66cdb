"""What the real kube-scheduler sends, byte for byte.

``KUBEBUILDER_ASSETS=... python -m tests.k8s.recorded_calls`` writes the recordings that other tests are made of.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.k8s.scheduling import configuration
from tests.support.control_plane import ControlPlane, control_plane

RECORDINGS = Path(__file__).resolve().parents[1] / "policy_server" / "kubernetes" / "testdata"
MODES = {"names-only": True, "full-objects": False}


@contextmanager
def _recorder() -> Iterator[tuple[str, dict[str, bytes]]]:
    """An extender that lets everything pass; yields its URL and the bodies by path."""
    bodies: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies[self.path] = body
            arguments = json.loads(body)
            names = arguments["NodeNames"] or [
                node["metadata"]["name"] for node in arguments["Nodes"]["items"]
            ]
            answer: object = {"Nodes": arguments["Nodes"], "NodeNames": arguments["NodeNames"]}
            if self.path == "/prioritize":
                answer = [{"Host": name, "Score": 0} for name in names]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join()


def record(plane: ControlPlane, *, names_only: bool) -> dict[str, bytes]:
    """The bodies of both calls about one pod and two nodes, by path. Nodes and pod are left behind."""
    for name in ("node-0", "node-1"):
        plane.add_node(name, **{"topology.kubernetes.io/zone": "edge"})
    with _recorder() as (url, bodies), plane.scheduler(configuration(plane, url, names_only=names_only)):
        plane.add_pod("recorded", app="service")
        plane.node_of("recorded")
    return bodies


def main() -> None:
    """Writes the recordings."""
    for name, names_only in MODES.items():
        with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as plane:
            bodies = record(plane, names_only=names_only)
        assert bodies["/filter"] == bodies["/prioritize"]
        (RECORDINGS / f"{name}.json").write_bytes(bodies["/filter"])


if __name__ == "__main__":
    main()
