"""For programs that use grpcio: their end without the interpreter's own.

When the interpreter ends it stops all threads, wherever they are; a call of grpcio that is deleted then may wait for
ever for a lock that one of them held.  Seen once; see grpc/grpc#40620."""
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
