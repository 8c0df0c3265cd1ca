"""A collector of OTLP's traces, over HTTP as JSON."""

import http.server
import json
import threading


class Collector:
    """Keeps the bodies that it is sent, as they are: what is in them is looked at when somebody asks."""

    def __init__(self):
        self.bodies = bodies = []

        class Handler(http.server.BaseHTTPRequestHandler):

            def do_POST(self):
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"

    def resources(self):
        return [resource for body in list(self.bodies) for resource in json.loads(body)["resourceSpans"]]

    def spans(self):
        return [span for resource in self.resources() for scope in resource["scopeSpans"] for span in scope["spans"]]
