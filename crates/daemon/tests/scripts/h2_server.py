"""An HTTP/2 server (python h2) that sends back bodies with a trailer, and counts violations of the protocol.
Usage: h2_server.py PORT"""
import socket
import sys
import threading
import traceback

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded, StreamReset, WindowUpdated

violations = []


def serve(client):
    connection = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
    connection.initiate_connection()
    client.sendall(connection.data_to_send())
    requests, bodies, waiting = {}, {}, {}

    def push():
        for stream in list(waiting):
            body = waiting[stream]
            while body:
                size = min(connection.local_flow_control_window(stream), connection.max_outbound_frame_size, len(body))
                if size <= 0:
                    break
                connection.send_data(stream, body[:size])
                body = body[size:]
            waiting[stream] = body
            if not body:
                connection.send_headers(stream, [("x-sum", str(len(bodies[stream])))], end_stream=True)
                del waiting[stream]

    while True:
        data = client.recv(65_536)
        if not data:
            return
        try:
            events = connection.receive_data(data)
        except Exception:
            violations.append(traceback.format_exc())
            client.sendall(connection.data_to_send())
            return
        for event in events:
            if isinstance(event, RequestReceived):
                requests[event.stream_id] = dict(event.headers)
                bodies[event.stream_id] = b""
            elif isinstance(event, DataReceived):
                bodies[event.stream_id] += event.data
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                head = requests[event.stream_id]
                if head[":path"] == "/violations":
                    bodies[event.stream_id] = "\n".join(violations).encode()
                fields = [(":status", "200"), ("trailer", "x-sum"), ("x-method", head[":method"])]
                connection.send_headers(event.stream_id, fields)
                waiting[event.stream_id] = bodies[event.stream_id]
            elif isinstance(event, StreamReset):
                waiting.pop(event.stream_id, None)
        push()
        client.sendall(connection.data_to_send())


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
