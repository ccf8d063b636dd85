"""Invalid and excessive traffic to a parameter server, from a stock gRPC client and plain sockets.

  hostile.py open PORT PID MIB        a plaintext server, which every process of this host may call
  hostile.py closed PORT PID MIB DIR  a server with TLS, a token and bound ranks; certificates in DIR
  hostile.py many PORT PID MIB        more connections than the server has descriptors
  hostile.py job PORT [DIR]           a valid job of two ranks, by the stock client alone

All but the last run while ranks 0 and 1 of the job "raw" train there and must not be affected.  They
exit with an error when a reply is not the expected one, or when the peak memory of the server
(process PID) was more than MIB MiB above its memory at the start.  Messages are encoded here, so no
generated code is needed."""
import os
import pathlib
import queue
import random
import resource
import select
import socket
import ssl
import struct
import sys
import threading
import time

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import grpcio_main  # noqa: E402

WAIT = 120  # seconds; only reached if something hangs
SERVICE = "/sparring.v1.ParameterServer/"
Code = grpc.StatusCode


def fail(what):
    sys.exit("hostile: " + what)


def expect(what, got, wanted):
    if got != wanted:
        fail(f"{what}: got {got!r}, wanted {wanted!r}")


# ---------------------------------------------------------------- messages

def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n)


def text(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def join(rank, job="raw", world=2, elements=2148, partition=4096, manifest="seed\t1\nmodel\tmlp\n",
         more=b""):
    """JoinRequest: one server, replies are mean gradients, sums in rank order; SGD at 0.01."""
    optimizer = number(1, 0) + b"\x11" + struct.pack("<d", 0.01)
    return (text(1, job) + number(2, rank) + number(3, world) + number(5, 1) + text(6, manifest) +
            number(7, elements) + number(8, partition) + number(9, 1) + number(10, 1) +
            text(11, optimizer) + more)


def leave(rank, job="raw", reason=""):
    return text(1, job) + number(2, rank) + (text(3, reason) if reason else b"")


PUSH, INIT, PULL, VALUES, MEAN, ROW_SELECTION = 1, 2, 3, 4, 5, 8
SELECTED_ROWS = 6  # dtype
ROW = 16   # elements


def fixed(field, n):
    return varint(field << 3 | 1) + struct.pack("<Q", n)


def hello(rank, session, lane=0):
    return number(1, 7) + number(2, rank) + fixed(8, session) + number(9, lane)


def heartbeat(rank, session, job="raw", count=1):
    return fixed(1, session) + number(2, rank) + text(3, job) + number(4, count)


def chunk(kind, rank, round_number, partition, payload=b"", length=None, dtype=0):
    head = (number(1, kind) + number(2, rank) + number(3, round_number) + number(4, partition) +
            number(5, dtype) + number(6, len(payload) if length is None else length))
    return head + (text(15, payload) if payload else b"")


def fields(message):
    """{field: value} of a message without repeated fields."""
    found, at = {}, 0

    def take():
        nonlocal at
        n = shift = 0
        while True:
            byte = message[at]
            at += 1
            n |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return n
    while at < len(message):
        tag = take()
        if tag & 7 == 0:
            found[tag >> 3] = take()
        elif tag & 7 == 2:
            size = take()
            found[tag >> 3] = message[at:at + size]
            at += size
        elif tag & 7 == 1:
            found[tag >> 3] = struct.unpack_from("<Q", message, at)[0]
            at += 8
        else:
            fail(f"an answer with wire type {tag & 7}")
    return found


# ---------------------------------------------------------------- the stock client

class Client:
    """One channel with its own connection."""

    def __init__(self, port, certificate=None, token=None):
        self.arguments = port, certificate, token
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        target = f"127.0.0.1:{port}"
        if certificate:
            folder, authority, name = certificate
            parts = [open(f"{folder}/{file}", "rb").read() if name else None
                     for file in (f"{authority}.pem", f"{name}.key", f"{name}.pem")]
            if not name:
                parts[0] = open(f"{folder}/{authority}.pem", "rb").read()
            self.channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(*parts), options)
        else:
            self.channel = grpc.insecure_channel(target, options)
        self.metadata = [("authorization", value) for value in
                         ([token] if isinstance(token, str) else token or [])]

    def path(self, method):
        return method if method.startswith("/") else SERVICE + method

    def call(self, method, request, **more):
        more.setdefault("metadata", self.metadata)
        return self.channel.unary_unary(self.path(method))(request, timeout=WAIT, **more)

    def stream(self, requests, method="Exchange"):
        return self.channel.stream_stream(self.path(method))(iter(requests), timeout=WAIT,
                                                             metadata=self.metadata)

    def refused(self, what, method, request, code, words="", **more):
        """One request (bytes), or a stream of them (a list), ends with this code and words."""
        try:
            if isinstance(request, list):
                for _ in self.stream(request, method):
                    pass
            else:
                self.call(method, request, **more)
        except grpc.RpcError as error:
            if error.code() != code or words not in (error.details() or ""):
                fail(f"{what}: got {error.code()} '{error.details()}', wanted {code} '{words}'")
            return
        fail(f"{what}: it was accepted")

    def check_serves(self, what):
        expect(what, self.call("/grpc.health.v1.Health/Check", b""), b"\x08\x01")

    def clone(self):
        return Client(*self.arguments)

    def close(self):
        self.channel.close()


# ---------------------------------------------------------------- HTTP/2 by hand

def frame(kind, flags, stream, body=b"", size=None):
    size = len(body) if size is None else size
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0)


def headers(path, *more):
    """A header block of literals without indexing."""
    block = b""
    for name, value in ((":method", "POST"), (":scheme", "http"), (":path", path),
                        (":authority", "x"), ("te", "trailers"),
                        ("content-type", "application/grpc")) + more:
        block += b"\0" + varint(len(name)) + name.encode() + varint(len(value)) + value.encode()
    return block


def connect(port):
    """With TCP_NODELAY, as gRPC's clients: else each window of a flood waits 40 ms for its last segment."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def drain(sock):
    """Read until the peer closes or resets the connection; returns the bytes received."""
    received = b""
    try:
        while True:
            data = sock.recv(1 << 16)
            if not data:
                return received
            received += data
    except (ConnectionResetError, BrokenPipeError, ssl.SSLError):
        return received


def send_and_drain(sock, data):
    """Send, close the sending side, and read until the server closes."""
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except (ConnectionResetError, BrokenPipeError, OSError):
        pass  # it may close before everything is sent
    received = drain(sock)
    sock.close()
    return received


class Flood:
    """One stream that sends as much as flow control allows, also after the server has ended it: then
    only the connection's window counts."""

    def __init__(self, sock, path):
        self.sock, self.buffer, self.stream_closed, self.closed = sock, b"", False, False
        self.connection_window = self.stream_window = self.initial = 65535
        sock.sendall(PREFACE + frame(HEADERS, 4, 1, headers(path)))

    def read(self):
        data = self.sock.recv(1 << 16)
        self.closed = not data
        self.buffer += data
        while len(self.buffer) >= 9:
            size = int.from_bytes(self.buffer[:3], "big")
            if len(self.buffer) < 9 + size:
                return
            kind, flags = self.buffer[3], self.buffer[4]
            stream = int.from_bytes(self.buffer[5:9], "big")
            body, self.buffer = self.buffer[9:9 + size], self.buffer[9 + size:]
            self.handle_frame(kind, flags, stream, body)

    def handle_frame(self, kind, flags, stream, body):
        if kind == WINDOW_UPDATE and stream == 0:
            self.connection_window += int.from_bytes(body, "big")
        elif kind == WINDOW_UPDATE:
            self.stream_window += int.from_bytes(body, "big")
        elif kind == SETTINGS and not flags & 1:
            for at in range(0, len(body), 6):
                if body[at:at + 2] == b"\0\4":
                    value = int.from_bytes(body[at + 2:at + 6], "big")
                    self.stream_window += value - self.initial
                    self.initial = value
            self.sock.sendall(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self.sock.sendall(frame(PING, 1, 0, body))
        elif kind == RST_STREAM:
            self.stream_closed = True

    def window(self):
        return self.connection_window if self.stream_closed else min(self.connection_window,
                                                            self.stream_window)

    def send(self, total):
        """The first `total` bytes of a message that claims 4 GiB."""
        sent, block = 0, b"\x08" * 16000
        first = b"\0" + struct.pack(">I", 0xfffffff0)
        while sent < total:
            is_open = self.window() >= len(block) + 5
            readable, writable, _ = select.select([self.sock], [self.sock] if is_open else [], [],
                                                  WAIT)
            if not readable and not writable:
                fail(f"a flood hangs after {sent} bytes")
            if readable:
                self.read()
            if self.closed:
                fail(f"a flood was cut off after {sent} bytes")
            if writable:
                body = first + block if sent == 0 else block
                self.sock.sendall(frame(DATA, 0, 1, body))
                self.connection_window -= len(body)
                self.stream_window -= len(body)
                sent += len(body)


# ---------------------------------------------------------------- attacks on any port

def random_bytes(port):
    chance = random.Random(1)
    for i in range(60):
        data = chance.randbytes(chance.choice((1, 9, 100, 5000, 70000)))
        send_and_drain(connect(port), (PREFACE if i % 2 else b"") + data)


def broken_frames(port):
    good = headers(SERVICE + "Join")
    for data in (frame(DATA, 0, 0, b"x"), frame(HEADERS, 4, 0, good), frame(HEADERS, 4, 2, good),
                 frame(CONTINUATION, 4, 1, good), frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\0"),
                 frame(WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 4, frame(SETTINGS, 0, 0, b"12345"),
                 frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"), frame(PING, 0, 0, b"1234567"),
                 frame(HEADERS, 4, 1, b"\x80"), frame(HEADERS, 4, 1, b"\xff" * 200),
                 frame(HEADERS, 4, 1, b"\0\x7f\xff\xff\xff\xff\xff\x0f"),
                 frame(HEADERS, 4, 1, b"\x3f\xff\xff\xff\xff\x0f"),
                 frame(DATA, 0, 1, b"", size=0xffffff), frame(200, 255, 5, b"y" * 50),
                 frame(HEADERS, 4, 1, headers("no slash")),
                 frame(HEADERS, 4, 1, headers(SERVICE + "Join", ("grpc-timeout", "x" * 100))),
                 frame(HEADERS, 4, 1, headers(SERVICE + "Join", ("grpc-encoding", "none such")))):
        send_and_drain(connect(port), PREFACE + data)


def message_lengths(port, path=SERVICE + "Exchange"):
    """The five bytes before a message have a wrong length or flag."""
    start = PREFACE + frame(HEADERS, 4, 1, headers(path))
    good = chunk(PUSH, 1, 1, 0, b"x" * 4096)
    for prefix, body, flags in ((b"\0\xff\xff\xff\xff", good, 1), (b"\0\xff\xff\xff\xff", good, 0),
                                (b"\0\0\0\0\3", good, 1), (b"\0\0\0\0\0" * 1000, good, 1),
                                (b"\1\0\0\0\5", b"12345", 1), (b"\xff\0\0\0\5", b"12345", 1),
                                (b"\0\0\0", b"", 1)):
        send_and_drain(connect(port), start + frame(DATA, flags, 1, prefix + body))


def rapid_reset(port):
    block = headers(SERVICE + "Join")
    data = b"".join(frame(HEADERS, 4, stream, block) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                    for stream in range(1, 6001, 2))
    send_and_drain(connect(port), PREFACE + data)


def control_flood(port):
    data = b"".join(frame(PING, 0, 0, struct.pack(">Q", i)) + frame(SETTINGS, 0, 0)
                    for i in range(3000))
    send_and_drain(connect(port), PREFACE + data)


def await_accept(sock):
    """Until the server has accepted the connection, and sent its settings or closed it."""
    try:
        sock.recv(1)
    except ConnectionError:
        pass


def idle_connections(port, client, count=2000):
    """Half of them send nothing, half open a stream that sends nothing."""
    held = []
    for i in range(count):
        sock = connect(port)
        if i % 2:
            sock.sendall(PREFACE + frame(HEADERS, 4, 1, headers(SERVICE + "Exchange")))
        held.append(sock)
    for sock in held:
        await_accept(sock)
    client.check_serves("health beside idle connections")
    for sock in held:
        sock.close()


# ---------------------------------------------------------------- an open server

def garbage_messages(client):
    nested = b""
    while len(nested) < 4000:
        nested = text(100, nested)
    for what, method, request, words in (
            ("random", "Join", b"\xff" * 10, "malformed"),
            ("cut off", "Join", join(2)[:-1], "malformed"),
            ("nothing", "Join", b"", "no optimizer"),
            ("a length beyond the end", "Leave", b"\x0a\x7f\x00", "malformed"),
            ("a number without end", "Leave", b"\x10" + b"\xff" * 11, "malformed"),
            ("a group", "Leave", b"\x0b" * 1000, "malformed"),
            ("text with a NUL", "Leave", leave(0, "a\0b"), "not valid UTF-8"),
            ("text that is none", "Join", join(2, b"\xff\xfe"), "not valid UTF-8"),
            ("a name of two lines", "Join", join(2, "raw\nanother"), "control character"),
            ("a long name", "Join", join(2, "x" * 128), "the limit is 127"),
            ("an optimizer that is none", "Join", join(2, more=text(11, number(1, 77))), "optimizer"),
            ("a payload", "Join", join(2, more=text(15, "x")), "payload of 1 bytes, the limit is 0"),
            ("a payload", "Leave", leave(1) + text(15, "x"), "payload of 1 bytes, the limit is 0"),
            ("a large one", "Join", join(2, manifest="x" * (2 << 20)), "the limit is 1048576"),
            ("a large one", "Leave", leave(1, reason="x" * 5000), "the limit is 4096"),
            ("fields without end", "Stats", number(9, 1) * 3000, "the limit is 4096"),
            ("memory", "Join", text(13, "") * 500000, "too much memory")):
        client.refused(f"{what} to {method}", method, request, Code.INVALID_ARGUMENT, words)
    for what, method, request, code, words in (
            ("too much for core", "Join", join(2, manifest="x" * (8 << 20)),
             Code.RESOURCE_EXHAUSTED, "larger than max"),
            ("no such method", "Steal", b"", Code.UNIMPLEMENTED, "no method"),
            ("no such service", "/a.B/C", b"", Code.UNIMPLEMENTED, "no method"),
            # Unknown fields are skipped: it is a leave without a job's name.
            ("nested", "Leave", number(2, 1) + nested, Code.UNAVAILABLE, "job '' is not served"),
            ("a garbage stream", "Exchange", [b"\xff" * 100], Code.INVALID_ARGUMENT, "malformed"),
            ("an unknown kind", "Exchange", [chunk(99, 0, 1, 0)], Code.INVALID_ARGUMENT, "kind 99"),
            ("a garbage heartbeat", "Attend", [b"\xff" * 100], Code.INVALID_ARGUMENT, "malformed"),
            ("a large heartbeat", "Attend", [text(9, "x" * 600)], Code.INVALID_ARGUMENT,
             "the limit is 512"),
            ("a heartbeat with a NUL", "Attend", [heartbeat(0, 1, "a\0b")], Code.INVALID_ARGUMENT,
             "not valid UTF-8"),
            ("a heartbeat with a payload", "Attend", [heartbeat(0, 1) + text(15, "x")], Code.INVALID_ARGUMENT,
             "payload of 1 bytes, the limit is 0"),
            ("a large header", "Exchange", [number(9, 1) * 100], Code.INVALID_ARGUMENT,
             "header of 200 bytes, the limit is 88"),
            ("a payload in the middle", "Exchange", [text(15, "abcd") + number(1, 1)],
             Code.INVALID_ARGUMENT, "must be the last field"),
            ("a large payload", "Exchange", [chunk(PUSH, 1, 1, 0, b"x" * (4 << 20) + b"y")],
             Code.INVALID_ARGUMENT, "payload of 4194305 bytes, the limit is 4194304")):
        client.refused(what, method, request, code, words)
    client.refused("compressed", "Leave", leave(1, reason="x" * 999), Code.UNIMPLEMENTED, "",
                   compression=grpc.Compression.Gzip)
    clone = client.clone()  # it has its own connection, which this ends
    clone.refused("large metadata", "Leave", leave(5), Code.RESOURCE_EXHAUSTED, "metadata size",
                 metadata=[("x", "y" * 30000)])
    clone.close()


def foreign_calls(client):
    """Well-formed calls of a client that is not part of the running job."""
    for what, method, request, code, words in (
            ("a rank that has joined", "Join", join(0), Code.ALREADY_EXISTS, "is a second one"),
            ("a rank too many", "Join", join(2), Code.INVALID_ARGUMENT, "rank 2 in a world of 2"),
            ("another size", "Join", join(2, world=3), Code.FAILED_PRECONDITION, "world size 3"),
            ("another job", "Join", join(0, "other"), Code.UNAVAILABLE, "serves job 'raw'"),
            ("a leave of another job", "Leave", leave(0, "other"), Code.UNAVAILABLE, "job 'raw' is"),
            ("a leave of an unknown rank", "Leave", leave(7), Code.NOT_FOUND, "rank 7 is not a member"),
            ("a repeated round", "Exchange", [chunk(PUSH, 1, 1, 0, b"\0" * 4096)], Code.ALREADY_EXISTS,
             "rank 1 has an open stream already"),
            ("a future round", "Exchange", [chunk(PUSH, 0, 1 << 60, 0, b"\0" * 4096)],
             Code.ALREADY_EXISTS, "rank 0 has an open stream already"),
            ("a wrong length", "Exchange", [chunk(PUSH, 1, 1, 0, b"\0" * 8, 1 << 60)],
             Code.ALREADY_EXISTS, "rank 1 has an open stream already"),
            ("another session", "Exchange", [hello(1, 77)], Code.ABORTED, "another session's"),
            ("no session", "Exchange", [hello(0, 0)], Code.ALREADY_EXISTS, "open stream already"),
            ("a lane too many", "Exchange", [hello(0, 0, 1)], Code.INVALID_ARGUMENT, "no lane 1"),
            ("a session of an unknown rank", "Exchange", [hello(9, 77)], Code.INVALID_ARGUMENT, "rank 9"),
            ("a heartbeat of another session", "Attend", [heartbeat(1, 77)], Code.ABORTED, "another session's"),
            ("a heartbeat of an unknown rank", "Attend", [heartbeat(9, 77)], Code.INVALID_ARGUMENT, "rank 9"),
            ("a heartbeat without a session", "Attend", [heartbeat(1, 0)], Code.INVALID_ARGUMENT,
             "sent a heartbeat without a session"),
            ("a resume with another session", "Join", join(1, more=fixed(14, 77) + number(16, 1)), Code.ABORTED,
             "another session's"),
            ("a resume of another job", "Join", join(1, "other", more=fixed(14, 77) + number(16, 1)),
             Code.NOT_FOUND, "not known here"),
            ("a leave of a session", "Leave", leave(1) + fixed(4, 77), Code.NOT_FOUND,
             "another session"),
            ("a push of an unknown rank", "Exchange", [chunk(PUSH, 9, 1, 0, b"\0" * 4096)],
             Code.INVALID_ARGUMENT, "rank 9 sent a chunk, but is not in job 'raw'")):
        client.refused(what, method, request, code, words)


def wait_until(what, condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        if time.monotonic() > deadline:
            fail(f"{what}: not within {WAIT} s")
        time.sleep(0.01)  # the server needs the processor, too


def exhaust_health_calls(port, client):
    """Health calls without a reply, or without a request, exhaust the limit of health calls and no other."""
    held = []
    for i in range(16):
        sock = connect(port)
        path = "/grpc.health.v1.Health/" + ("Watch" if i % 2 else "Check")
        sock.sendall(PREFACE + b"".join(frame(HEADERS, 4, stream, headers(path))
                                        for stream in range(1, 2 * 120, 2)))
        held.append(sock)
    for sock in held:
        await_accept(sock)

    def health():
        try:
            client.call("/grpc.health.v1.Health/Check", b"")
            return Code.OK
        except grpc.RpcError as error:
            return error.code()
    wait_until("health is exhausted", lambda: health() == Code.RESOURCE_EXHAUSTED)
    client.call("Stats", b"")
    client.refused("a leave of an unknown rank", "Leave", leave(7), Code.NOT_FOUND)
    for sock in held:
        sock.close()
    wait_until("health is back", lambda: health() == Code.OK)


def attack_open(port):
    client = Client(port)
    client.check_serves("health")
    garbage_messages(client)
    foreign_calls(client)
    random_bytes(port)
    broken_frames(port)
    message_lengths(port)
    flood = connect(port)
    Flood(flood, SERVICE + "Exchange").send(64 << 20)  # an admitted call is buffered
    flood.close()
    flood = connect(port)
    Flood(flood, SERVICE + "Steal").send(320 << 20)  # a refused one is not
    flood.close()
    rapid_reset(port)
    control_flood(port)
    idle_connections(port, client)
    exhaust_health_calls(port, client)
    foreign_calls(client)
    client.check_serves("health in the end")


def attack_many(port, pid):
    """More idle connections than the server may have descriptors.  A batch takes less than the free
    descriptors; the next one follows once all of it was accepted and the server has closed others."""
    with open(f"/proc/{pid}/limits", encoding="ascii") as file:
        most = int(next(line for line in file if line.startswith("Max open files")).split()[3])

    def has_room():
        return len(os.listdir(f"/proc/{pid}/fd")) <= most * 3 // 4
    held = []
    for _ in range(40):
        wait_until("room for more connections", has_room)
        batch = [connect(port) for _ in range(most // 10)]
        for sock in batch:
            try:
                sock.recv(1)  # the server sends its SETTINGS first
            except ConnectionResetError:
                pass  # closed to make room
        held += batch
    wait_until("room in the end", has_room)
    client = Client(port)
    client.check_serves("health beside many connections")
    foreign_calls(client)
    for sock in held:
        sock.close()


# ---------------------------------------------------------------- a closed server

def read_token(folder):
    with open(f"{folder}/token", encoding="ascii") as file:
        return file.read().strip()


def tls_socket(port, folder):
    context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
    context.load_cert_chain(f"{folder}/rank1.pem", f"{folder}/rank1.key")
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(connect(port), server_hostname="127.0.0.1")


def untrusted_clients(port, folder):
    """A client without a certificate of the authority does not get to HTTP/2."""
    for what, certificate in (("plaintext", None), ("no certificate", (folder, "ca", None)),
                              ("another authority", (folder, "ca", "stranger")),
                              ("a server that is not trusted", (folder, "other", "rank1"))):
        client = Client(port, certificate, read_token(folder))
        for method, request in (("Join", join(0)), ("Leave", leave(0, reason="gone")),
                                ("/grpc.health.v1.Health/Check", b"")):
            client.refused(f"{what} to {method}", method, request, Code.UNAVAILABLE)
        client.close()
    random_bytes(port)


def invalid_tokens(port, folder):
    token = read_token(folder)
    for what, value in (("no token", None), ("a prefix", f"Bearer {token[:-1]}"),
                        ("more", f"Bearer {token}x"), ("no scheme", token),
                        ("another scheme", f"Basic {token}"), ("nothing", "Bearer "),
                        ("two", [f"Bearer {token}", f"Bearer {token}"]),
                        ("another one", "Bearer " + "x" * len(token)),
                        ("a long one", "Bearer " + "x" * 4000)):
        client = Client(port, (folder, "ca", "rank1"), value)
        client.check_serves("health needs no token")
        for method, request in (("Join", join(1)), ("Leave", leave(1, reason="gone")), ("Stats", b""),
                                ("Attend", [heartbeat(1, 77)]),
                                ("Exchange", [chunk(PUSH, 1, 1, 0, b"\0" * 4096)]), ("Steal", b"")):
            client.refused(f"{what} to {method}", method, request, Code.UNAUTHENTICATED,
                           "--token-file")
        client.close()


def unauthorized_ranks(port, folder):
    for name, said in (("rank1", "names 'sparring:rank/1'"), ("nobody", "names no rank")):
        client = Client(port, (folder, "ca", name), "Bearer " + read_token(folder))
        for method, request in (("Join", join(0)), ("Leave", leave(0, reason="gone")),
                                ("Attend", [heartbeat(0, 77)]), ("Exchange", [hello(0, 77)]),
                                ("Exchange", [chunk(PUSH, 0, 1, 0, b"\0" * 4096)])):
            client.refused(f"rank 0 by {name} to {method}", method, request, Code.PERMISSION_DENIED,
                           said)
        client.close()


def attack_closed(port, folder):
    untrusted_clients(port, folder)
    invalid_tokens(port, folder)
    unauthorized_ranks(port, folder)
    for sock in [connect(port) for _ in range(500)]:  # without a handshake
        sock.close()
    flood = tls_socket(port, folder)
    Flood(flood, SERVICE + "Exchange").send(320 << 20)
    flood.close()
    client = Client(port, (folder, "ca", "rank1"), "Bearer " + read_token(folder))
    garbage_messages(client)
    client.refused("a repeated round", "Exchange", [chunk(PUSH, 1, 1, 0, b"\0" * 4096)],
                   Code.ALREADY_EXISTS, "rank 1 has an open stream already")
    client.check_serves("health in the end")


# ---------------------------------------------------------------- a good job

COUNTS = (1024, 1024, 100)  # elements of the three partitions


def floats(value, count):
    return struct.pack("<f", value) * count


class Rank:
    """A worker made of the stock client only."""

    def __init__(self, rank, client):
        self.rank, self.client = rank, client
        self.joined = client.channel.unary_unary(SERVICE + "Join").future(
            join(rank), timeout=WAIT, metadata=client.metadata)

    def open(self):
        reply = fields(self.joined.result())
        expect("partitions", reply[1], 3)
        expect("elements", reply[3], sum(COUNTS))

    def exchange(self, first, rounds):
        """A whole job of `rounds` rounds, in one stream; a round is sent after all replies to the
        previous one."""
        answers, arrived = [], queue.Queue()

        def wait():
            for _ in COUNTS:
                arrived.get(timeout=WAIT)

        def requests():
            for p, count in enumerate(COUNTS):
                if self.rank == 0:
                    yield chunk(INIT, 0, 0, p, floats(first, count))
                yield chunk(PULL, self.rank, 0, p)
            for number_of_round in range(1, rounds + 1):
                wait()
                for p, count in enumerate(COUNTS):
                    yield chunk(PUSH, self.rank, number_of_round, p,
                                floats(number_of_round + self.rank, count))
            wait()
            self.client.call("Leave", leave(self.rank))
        for answer in self.client.stream(requests()):
            answers.append(answer)
            arrived.put(None)
        return answers


def check_answers(rank, answers, first):
    for i, answer in enumerate(answers):
        got, round_number = fields(answer), i // 3
        count = COUNTS[got.get(4, 0)]
        wanted = first if round_number == 0 else 2 * round_number + 1
        expect(f"rank {rank}, answer {i}: kind", got[1], MEAN if round_number else VALUES)
        expect(f"rank {rank}, answer {i}: round", got.get(3, 0), round_number)
        expect(f"rank {rank}, answer {i}: values", got[15], floats(wanted, count))


def good_job(port, folder, rounds=5):
    clients = [Client(port, (folder, "ca", f"rank{r}") if folder else None,
                      "Bearer " + read_token(folder) if folder else None) for r in range(2)]
    for what, request, code in (
            ("no elements", join(0, world=1, elements=0), Code.INVALID_ARGUMENT),
            ("more memory than the host has", join(0, world=1, elements=(1 << 38) - 1, partition=4 << 20),
             Code.RESOURCE_EXHAUSTED),
            ("an unbounded number", join(0, world=1, elements=(1 << 64) - 1),
             Code.INVALID_ARGUMENT),
            ("a large world", join(0, world=1 << 31), Code.INVALID_ARGUMENT),
            ("small partitions", join(0, world=1, partition=4), Code.INVALID_ARGUMENT)):
        clients[0].refused(what, "Join", request, code)
    ranks = [Rank(r, clients[r]) for r in range(2)]
    answers = [None, None]

    def work(r):
        answers[r] = ranks[r].exchange(0.5, rounds)
    for rank in ranks:
        rank.open()
    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for r in range(2):
        if answers[r] is None:
            fail(f"rank {r} of the good job did not end")
        expect(f"rank {r}: answers", len(answers[r]), 3 * (rounds + 1))
        check_answers(r, answers[r], 0.5)


def encode_rows(rows, values):
    """The payload of a reply with these rows of a partition."""
    parts = [struct.pack("<II", ROW, len(rows))]
    for row in rows:
        elements = values[row * ROW:(row + 1) * ROW]
        parts.append(struct.pack(f"<I{len(elements)}f", row, *elements))
    return b"".join(parts)


def row_selection_job(port, folder, rounds=3):
    """One rank, the optimizer on the server (SGD at 0.5), and a row selection before its pull and before
    each push."""
    client = Client(port, (folder, "ca", "rank0") if folder else None,
                    "Bearer " + read_token(folder) if folder else None)
    optimizer = number(1, 0) + b"\x11" + struct.pack("<d", 0.5)
    terms = (text(1, "selected") + number(3, 1) + number(5, 1) + text(6, "model\tselected\n") +
             number(7, sum(COUNTS)) + number(8, 4096) + text(11, optimizer) + number(24, SELECTED_ROWS))
    client.call("Join", terms)
    values = [[float(p * 10000 + i) for i in range(count)] for p, count in enumerate(COUNTS)]
    named = [[0, 5, 63], [], [2, 6]]  # the last row of the last partition has 4 elements
    arrived = queue.Queue()

    def requests():
        for number_of_round in range(rounds + 1):
            for p, count in enumerate(COUNTS):
                rows = [row for row in named[p] if row != number_of_round]
                if number_of_round == 0:
                    yield chunk(INIT, 0, 0, p, struct.pack(f"<{count}f", *values[p]))
                yield chunk(ROW_SELECTION, 0, number_of_round, p,
                            struct.pack(f"<{len(rows)}I", *rows), dtype=SELECTED_ROWS)
                yield (chunk(PULL, 0, 0, p) if number_of_round == 0 else
                       chunk(PUSH, 0, number_of_round, p, floats(2.0, count)))
            for _ in COUNTS:
                arrived.get(timeout=WAIT)
        client.call("Leave", leave(0, "selected"))
    seen = 0
    for answer in client.stream(requests()):
        got, number_of_round = fields(answer), seen // len(COUNTS)
        p = got.get(4, 0)
        rows = [row for row in named[p] if row != number_of_round]
        expect("selected rows: kind and dtype", (got[1], got.get(5, 0)), (VALUES, SELECTED_ROWS))
        expect(f"selected rows: partition {p}, round {number_of_round}", got[15],
               encode_rows(rows, [v - number_of_round for v in values[p]]))
        seen += 1
        arrived.put(None)
    expect("replies with selected rows", seen, len(COUNTS) * (rounds + 1))


# ---------------------------------------------------------------- main

def memory_mib(pid, name):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024


def main():
    mode, port = sys.argv[1], int(sys.argv[2])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    if mode == "job":
        folder = sys.argv[3] if len(sys.argv) > 3 else None
        good_job(port, folder)
        row_selection_job(port, folder)
        print("hostile: a good job")
        return
    pid, most = int(sys.argv[3]), float(sys.argv[4])
    before = memory_mib(pid, "VmRSS")
    started = time.monotonic()
    if mode == "open":
        attack_open(port)
    elif mode == "many":
        attack_many(port, pid)
    else:
        attack_closed(port, sys.argv[5])
    grown = memory_mib(pid, "VmHWM") - before
    print(f"hostile: all refused in {time.monotonic() - started:.1f} s, "
          f"the server grew by {grown:.0f} MiB")
    if grown > most:
        fail(f"the server grew by {grown:.0f} MiB, more than {most:.0f}")


grpcio_main.run(main)
