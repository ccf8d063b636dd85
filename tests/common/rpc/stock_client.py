"""A stock gRPC client against the echo server of rpc_support.c: health, an unknown method, an
application status, a stream of tensor chunks, a refused compressed message.  Messages are written
as bytes by hand, so no generated code is needed.  Usage: stock_client.py PORT"""
import pathlib
import sys
import time

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import grpcio_main  # noqa: E402

TIMEOUT = 20


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: got {got!r}, wanted {wanted!r}")


def code_of(call, *args, **kwargs):
    try:
        call(*args, timeout=TIMEOUT, **kwargs)
    except grpc.RpcError as error:
        return error
    sys.exit("the call succeeded")


def chunk(payload):
    """kind 1, rank 0, length and the payload in field 15, as any protobuf library writes it."""
    def varint(n):
        out = b""
        while n > 127:
            out += bytes([n & 127 | 128])
            n >>= 7
        return out + bytes([n])
    head = b"\x08\x01\x30" + varint(len(payload))
    return head + (b"\x7a" + varint(len(payload)) + payload if payload else b"")


def main():
    channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}",
                                    options=[("grpc.enable_http_proxy", 0)])
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    expect("health", check(b"", timeout=TIMEOUT, wait_for_ready=True), b"\x08\x01")
    expect("health of a service", check(b"\x0a\x0ctest.v1.Echo", timeout=TIMEOUT), b"\x08\x01")
    expect("unknown service", code_of(check, b"\x0a\x01x").code(), grpc.StatusCode.NOT_FOUND)

    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=TIMEOUT)
    expect("watch", next(watch), b"\x08\x01")
    watch.cancel()

    before = time.monotonic()
    error = code_of(channel.unary_unary("/test.v1.Echo/Nothing"), b"")
    expect("unknown method", error.code(), grpc.StatusCode.UNIMPLEMENTED)
    expect("answered at once", time.monotonic() - before < TIMEOUT / 4, True)

    error = code_of(channel.unary_unary("/test.v1.Echo/Fail"), b"\x0a\x05words")
    expect("our status", error.code(), grpc.StatusCode.FAILED_PRECONDITION)
    expect("its text", error.details(), "words")
    expect("its name", dict(error.trailing_metadata())["sparring-status"], "MISMATCH")

    chunks = [chunk(bytes([i]) * size) for i, size in enumerate((0, 1, 127, 128, 1 << 20))]
    stream = channel.stream_stream("/test.v1.Echo/Stream")
    expect("chunks", list(stream(iter(chunks), timeout=TIMEOUT)), chunks)

    error = code_of(channel.unary_unary("/test.v1.Echo/Unary"), b"\x0a\x7f" + b"x" * 127,
                    compression=grpc.Compression.Gzip)
    expect("compressed", error.code(), grpc.StatusCode.UNIMPLEMENTED)
    error = code_of(channel.unary_unary("/test.v1.Echo/Unary"), b"\xff")
    expect("malformed", error.code(), grpc.StatusCode.INVALID_ARGUMENT)
    print("stock client: all answers as expected")


grpcio_main.run(main)
