"""What grpcurl does, with grpcio: call Stats and Health by the installed descriptor set alone.
The server has played one round of raw_job.c's job.  Usage: stock_stats.py PROTOSET PORT"""
import pathlib
import sys

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import grpcio_main  # noqa: E402

TIMEOUT = 20


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: got {got!r}, wanted {wanted!r}")


def main():
    pool = descriptor_pool.DescriptorPool()
    with open(sys.argv[1], "rb") as file:
        for entry in descriptor_pb2.FileDescriptorSet.FromString(file.read()).file:
            pool.Add(entry)

    def message_class(descriptor):
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(pool).GetPrototype(descriptor)

    channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[2]}",
                                    options=[("grpc.enable_http_proxy", 0)])

    def call(service, name):
        method = pool.FindServiceByName(service).FindMethodByName(name)
        stub = channel.unary_unary(f"/{service}/{name}",
                                   request_serializer=lambda m: m.SerializeToString(),
                                   response_deserializer=message_class(method.output_type).FromString)
        return stub(message_class(method.input_type)(), timeout=TIMEOUT, wait_for_ready=True)

    expect("health", call("grpc.health.v1.Health", "Check").status, 1)
    stats = call("sparring.v1.ParameterServer", "Stats")
    expect("state", stats.job.state, "running")
    expect("rounds", stats.counters.rounds, 1)
    expect("pushes", stats.counters.pushes, 6)
    expect("lag", [w.lag_rounds for w in stats.job.workers], [0.0, 0.0])
    expect("bounds", list(stats.staleness.bound)[:4], [0, 1, 2, 4])
    expect("staleness", list(stats.staleness.pushes)[0], 6)
    joins = [m for m in stats.methods if m.method == "/sparring.v1.ParameterServer/Join"]
    expect("joins", joins[0].started, 2)
    print("stock client: the statistics are as expected")


grpcio_main.run(main)
