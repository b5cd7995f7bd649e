"""A WebSocket server that sends back every message, in fragments if it is long. Usage: websocket_server.py PORT"""
import sys

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve


def messages(connection):
    try:
        while True:
            yield connection.recv()
    except ConnectionClosed:
        pass


def echo(connection):
    for message in messages(connection):
        if message == "close, please":
            connection.close(4000, "as you wish")
            return
        if len(message) > 100_000:
            third = len(message) // 3
            connection.send([message[:third], message[third : 2 * third], message[2 * third :]])
        else:
            connection.send(message)


with serve(echo, "127.0.0.1", int(sys.argv[1]), max_size=None) as server:
    server.serve_forever()
