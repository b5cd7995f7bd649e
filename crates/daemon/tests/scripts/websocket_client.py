"""Sends all kinds and sizes of frames, and checks what comes back. Usage: websocket_client.py PORT"""
import sys

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

SIZES = [0, 1, 125, 126, 65_535, 65_536, 1 << 20]
url = f"ws://127.0.0.1:{sys.argv[1]}/socket"
checked = 0


def check(is_true, what):
    global checked
    assert is_true, what
    checked += 1


def pattern(size):
    return bytes((at * 2_654_435_761 >> 13) & 0xFF for at in range(size))


for compression in [None, "deflate"]:
    with connect(url, compression=compression, max_size=None, proxy=None) as connection:
        for size in SIZES:
            data = pattern(size)
            connection.send(data)
            check(connection.recv(timeout=20) == data, f"binary of {size}")
            text = data.decode("latin1")
            connection.send(text)
            check(connection.recv(timeout=20) == text, f"text of {size}")
            # Fragments of all sizes, also of none, with control frames between the messages.
            connection.send([data, b"", data[:125], data[:1]])
            check(connection.recv(timeout=20) == data + data[:125] + data[:1], f"fragments of {size}")
            connection.send([text, "", text[:126]])
            check(connection.recv(timeout=20) == text + text[:126], f"fragments of text of {size}")
        for size in [0, 1, 125]:
            check(connection.ping(pattern(size)).wait(20), f"ping of {size}")
            connection.pong(pattern(size))
        connection.send("still here")
        check(connection.recv(timeout=20) == "still here", "after pongs")

for code, reason in [(1000, ""), (1000, "done"), (1001, "x" * 123), (3000, "registered"), (4999, "private")]:
    with connect(url, proxy=None) as connection:
        connection.close(code, reason)
    check((connection.close_code, connection.close_reason) == (code, reason), f"close with {code}")

with connect(url, proxy=None) as connection:
    connection.send("close, please")
    try:
        connection.recv(timeout=20)
        check(False, "a message in place of the close")
    except ConnectionClosed as closed:
        check((closed.rcvd.code, closed.rcvd.reason) == (4000, "as you wish"), "close by the server")

print(checked)
