"""A server of JSON for tests that stand in for a Kubernetes API server. It refuses everything but GET."""

import http.server
import json
import threading


def failure(status, reason):
    """What such a server answers instead."""
    return status, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status}


class JsonServer:
    """`answer`: from a request's path, without its query, to status and body; it is called by threads of the server's
    own. Serves within `with`, which gives its URL."""

    def __init__(self, answer):
        class Handler(http.server.BaseHTTPRequestHandler):
            def reply(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self):
                self.reply(*answer(self.path.split("?")[0]))

            def do_POST(self):
                self.reply(*failure(405, "MethodNotAllowed"))

            do_PATCH = do_PUT = do_DELETE = do_POST

            def log_message(self, *_):
                pass

        self.handler = Handler

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
