#!/usr/bin/env python3
"""PyTorch's RPC parameter server for `sparring bench ps`: one call carries a worker's gradient up, the server sums
those of all workers and answers each with the mean.

Ranks 0 to servers-1 are servers, the others workers; with several servers each gets an equal part of the gradient.
This is the batching parameter server of PyTorch's tutorial (`async_execution`: a future that the last worker
completes), with nothing to update.  The first gradient of a round is summed into as it came, without a copy.

A worker reads the number of iterations of a turn from stdin and answers "SECONDS WRONG"; at the end of stdin all leave.
"""
import argparse
import os
import sys
import threading
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True, help="of each worker's float32 gradient")
    parser.add_argument("--timeout-ms", type=int, default=60000)
    parser.add_argument("--transport", choices=["uv", "shm"], required=True,
                        help="uv: TCP, also for tensors; shm: shared memory, and the channel PyTorch picks for it")
    parser.add_argument("--meeting", required=True, help="a file that does not exist yet")
    return parser.parse_args()


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


a = parse_arguments()
os.environ.setdefault("GLOG_minloglevel", "2")
os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
try:
    import torch
    import torch.distributed.rpc as rpc
except Exception as error:
    say("unavailable PyTorch with torch.distributed.rpc (%s)" % str(error).splitlines()[0])
    sys.exit(0)

PERIOD = 256  # of the values, elements; the same as in ps_worker.c


class Server:
    lock = threading.Lock()
    future = None
    total = None
    arrived = 0


@rpc.functions.async_execution
def push_pull(workers, gradient):
    with Server.lock:
        if Server.arrived == 0:
            Server.future, Server.total = torch.futures.Future(), gradient
        else:
            Server.total.add_(gradient)
        Server.arrived += 1
        future = Server.future
        if Server.arrived < workers:
            return future
        total = Server.total
        Server.arrived, Server.future, Server.total = 0, None, None
    if workers > 1:
        total.div_(workers)
    future.set_result(total)
    return future


def values_of(rank, iteration):
    return ((torch.arange(PERIOD) * 31 + rank * 17 + iteration * 7) % PERIOD).float()


def spread(period, count):
    return period.repeat((count + PERIOD - 1) // PERIOD)[:count]


def take_turns(rank, count):
    bounds = [count * k // a.servers for k in range(a.servers + 1)]
    gradient = torch.zeros(count)
    parts = [gradient[bounds[k]:bounds[k + 1]] for k in range(a.servers)]
    iteration = 0
    say("ready")
    for line in sys.stdin:
        spent, wrong = 0.0, 0
        for _ in range(int(line)):
            gradient.copy_(spread(values_of(rank, iteration), count))
            began = time.perf_counter()
            futures = [rpc.rpc_async("server%d" % k, push_pull, args=(a.workers, parts[k]))
                       for k in range(a.servers)]
            results = [future.wait() for future in futures]
            spent += time.perf_counter() - began
            wanted = spread(sum(values_of(r, iteration) for r in range(a.workers)) / a.workers, count)
            result = results[0] if a.servers == 1 else torch.cat(results)
            wrong += int(((result - wanted).abs() > 0.002).sum())
            iteration += 1
        say("%.9f %d" % (spent / int(line), wrong))


def main():
    transports, channels = (["shm"], None) if a.transport == "shm" else (["uv"], ["mpt_uv", "basic"])
    options = rpc.TensorPipeRpcBackendOptions(init_method="file://" + a.meeting, rpc_timeout=a.timeout_ms / 1000,
                                              num_worker_threads=max(4, 2 * a.workers), _transports=transports,
                                              _channels=channels)
    name = "server%d" % a.rank if a.rank < a.servers else "worker%d" % (a.rank - a.servers)
    rpc.init_rpc(name, rank=a.rank, world_size=a.servers + a.workers, rpc_backend_options=options)
    if a.rank < a.servers:
        say("ready")
        sys.stdin.read()
    else:
        take_turns(a.rank - a.servers, a.bytes // 4)
    rpc.shutdown()


if __name__ == "__main__":
    main()
