"""Speaks HTTP/2 with the gateway by python h2, which raises an error at any violation of the protocol, and then sends what
is forbidden. Usage: h2_client.py PORT"""
import socket
import sys

import h2.events as events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

checked = 0


def check(is_true, what):
    global checked
    assert is_true, what
    checked += 1


def head(method="GET", path="/", *fields):
    return [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", path), *fields]


class Client:
    def __init__(self, strict=True, settings=None):
        self.socket = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
        config = H2Configuration(
            header_encoding="utf-8", validate_outbound_headers=strict, normalize_outbound_headers=strict
        )
        self.h2 = H2Connection(config)
        self.h2.local_settings = Settings(client=True, initial_values=settings or {})
        self.h2.initiate_connection()
        self.bodies, self.heads, self.trailers = {}, {}, {}
        self.ended, self.resets, self.pongs, self.closed = set(), {}, 0, None
        self.flush()

    def flush(self):
        self.socket.sendall(self.h2.data_to_send())

    def turn(self):
        """Reads once. False: the gateway has closed the connection."""
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        if not data:
            return False
        for event in self.h2.receive_data(data):
            stream = getattr(event, "stream_id", None)
            if isinstance(event, events.ResponseReceived):
                self.heads[stream] = dict(event.headers)
            elif isinstance(event, events.DataReceived):
                self.bodies[stream] = self.bodies.get(stream, b"") + event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif isinstance(event, events.TrailersReceived):
                self.trailers[stream] = dict(event.headers)
            elif isinstance(event, events.StreamEnded):
                self.ended.add(stream)
            elif isinstance(event, events.StreamReset):
                self.resets[stream] = event.error_code
            elif isinstance(event, events.PingAckReceived):
                self.pongs += 1
            elif isinstance(event, events.ConnectionTerminated):
                self.closed = event.error_code
        try:
            self.flush()
        except OSError:
            # The gateway has closed the connection.
            return False
        return True

    def until(self, is_so, what):
        while not is_so():
            assert self.turn(), f"closed before {what}: {self.closed}, {self.resets}"

    def ask(self, fields, body=b""):
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, fields, end_stream=not body)
        while body:
            window = self.h2.local_flow_control_window(stream)
            size = min(window, self.h2.max_outbound_frame_size, len(body))
            if size <= 0:
                self.flush()
                assert self.turn(), "closed while sending"
                continue
            body, piece = body[size:], body[:size]
            self.h2.send_data(stream, piece, end_stream=not body)
        self.flush()
        return stream

    def get(self, fields, body=b""):
        stream = self.ask(fields, body)
        self.until(lambda: stream in self.ended or stream in self.resets, "a response")
        return stream


def pattern(size):
    return bytes((at * 2_654_435_761 >> 13) & 0xFF for at in range(size))


client = Client()
# Bodies of all sizes around frames and windows, with a length and without.
for size in [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 1 << 20]:
    for fields in [[], [("content-length", str(size))]]:
        body = pattern(size)
        stream = client.get(head("POST", "/echo", ("te", "trailers"), *fields), body)
        check(client.heads[stream][":status"] == "200", f"POST of {size}")
        check(client.bodies.get(stream, b"") == body, f"body of {size}")
        check(client.trailers[stream] == {"x-sum": str(size)}, f"trailers of {size}")
# Many streams at once.
streams = [client.ask(head("POST", f"/{number}"), pattern(number * 97)) for number in range(1, 60)]
client.until(lambda: all(stream in client.ended for stream in streams), "all responses")
check(all(client.bodies[stream] == pattern((at + 1) * 97) for at, stream in enumerate(streams)), "bodies of many streams")
# Heads that need CONTINUATION frames.
stream = client.get(head("GET", "/long", ("x-long", "a" * 30_000)))
check(client.heads[stream][":status"] == "200", "a head of several frames")
# Control frames, and streams that are taken back.
for number in range(10):
    client.h2.ping(bytes([number] * 8))
client.h2.prioritize(client.h2.get_next_available_stream_id(), weight=17)
client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 20_000, SettingCodes.MAX_FRAME_SIZE: 20_000})
client.flush()
client.until(lambda: client.pongs == 10, "pongs")
stream = client.h2.get_next_available_stream_id()
client.h2.send_headers(stream, head("POST", "/taken-back"))
client.h2.reset_stream(stream, ErrorCodes.CANCEL)
stream = client.get(head("POST", "/echo"), pattern(100_000))
check(client.bodies[stream] == pattern(100_000), "a small window")
# A window of nothing: the response waits, and others do not.
small = Client(settings={SettingCodes.INITIAL_WINDOW_SIZE: 0})
first = small.ask(head("POST", "/echo"), b"hello")
small.until(lambda: first in small.heads, "a head")
check(small.bodies.get(first, b"") == b"", "no body without a window")
small.h2.increment_flow_control_window(5, first)
small.flush()
small.until(lambda: first in small.ended, "the rest")
check(small.bodies[first] == b"hello", "a body with a window")

# What is forbidden ends the stream or the connection, or is answered 400; it never reaches the server.
for what, fields in [
    ("upper case", head("GET", "/bad", ("X-Upper", "1"))),
    ("connection", head("GET", "/bad", ("connection", "close"))),
    ("transfer-encoding", head("GET", "/bad", ("transfer-encoding", "chunked"))),
    ("te", head("GET", "/bad", ("te", "gzip"))),
    ("no path", [(":method", "GET"), (":scheme", "http"), (":authority", "test")]),
    ("empty path", head("GET", "")),
    ("no method", [(":scheme", "http"), (":authority", "test"), (":path", "/bad")]),
    ("no scheme", [(":method", "GET"), (":authority", "test"), (":path", "/bad")]),
    ("path twice", head("GET", "/bad", (":path", "/bad"))),
    ("unknown pseudo-header", head("GET", "/bad", (":unknown", "1"))),
    ("pseudo-header last", [("x", "1"), *head("GET", "/bad")]),
    ("line end", head("GET", "/bad", ("x", "a\r\nb: c"))),
    ("nul", head("GET", "/bad", ("x", "a\0b"))),
    ("other host", head("GET", "/bad", ("host", "other"))),
    ("length without a body", head("POST", "/bad", ("content-length", "5"))),
]:
    client = Client(strict=False)
    stream = client.ask(fields)
    while stream not in client.ended and stream not in client.resets and client.closed is None:
        if not client.turn():
            break
    status = client.heads.get(stream, {}).get(":status")
    check(status in (None, "400"), f"{what}: {status}")

stream = (client := Client()).get(head("GET", "/violations"))
check(client.bodies.get(stream, b"") == b"", client.bodies.get(stream))
print(checked)
