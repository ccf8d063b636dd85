"""Ends programs that use grpcio with os._exit, without the shutdown of the interpreter.

The shutdown stops all threads at any point; the destructor of a grpcio call may then wait for ever for a lock that a
stopped thread held.  Observed once; see grpc/grpc#40620."""
import os
import sys
import traceback


def run(main):
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        code = 1
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
