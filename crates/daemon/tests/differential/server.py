"""gunicorn with an application that tells what it has seen of each request. Usage: python3 server.py PORT"""
import base64
import json
import sys

from gunicorn.app.base import BaseApplication


def application(environ, start_response):
    body = environ["wsgi.input"].read()
    headers = [
        [name[5:].lower().replace("_", "-"), value] for name, value in environ.items() if name.startswith("HTTP_")
    ]
    if environ.get("CONTENT_TYPE"):
        headers.append(["content-type", environ["CONTENT_TYPE"]])
    seen = {
        "method": environ["REQUEST_METHOD"],
        "target": environ["RAW_URI"],
        "headers": headers,
        "body": body.decode("latin1"),
    }
    told = json.dumps(seen).encode()
    fields = [("content-type", "application/json"), ("content-length", str(len(told)))]
    # A response to HEAD has no body to tell it in.
    if environ["REQUEST_METHOD"] == "HEAD":
        fields.append(("x-seen", base64.b64encode(told).decode()))
    start_response("200 OK", fields)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [told]


class Server(BaseApplication):
    def load_config(self):
        settings = {
            "bind": f"127.0.0.1:{sys.argv[1]}",
            "worker_class": "gthread",
            "threads": 16,
            # Connections end when the proxy closes them, never in the middle of a test.
            "keepalive": 600,
            "timeout": 0,
            "loglevel": "critical",
            # The proxies limit these; the server takes all that they let through.
            "limit_request_line": 0,
            "limit_request_field_size": 0,
            "limit_request_fields": 1000,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def load(self):
        return application


Server().run()
