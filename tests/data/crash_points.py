"""Runs as a subprocess: kill a writer at each of its file operations in turn.

For k = 0, 1, 2, ... a fork writes three episodes and closes, and sends itself SIGKILL just before its k-th call of
open-for-writing, fsync, rename, truncate or unlink; the k-th folder is left as found. The number of durable
episodes it had announced is in ``FOLDER/k.acknowledged``. Stops at the first k that nobody reaches.

usage: python crash_points.py FOLDER
"""

import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import collect_forever


def arm(k):
    """Make the k-th file operation from now on kill this process."""
    calls = iter(range(10**6))

    def armed(function):
        def wrapper(*args, **kwargs):
            if next(calls) == k:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    os.fsync, os.truncate = armed(os.fsync), armed(os.truncate)
    for name in ("open", "replace", "unlink", "mkdir"):
        setattr(pathlib.Path, name, armed(getattr(pathlib.Path, name)))


def write(folder, acknowledged):
    with collect_forever.open_writer(folder) as writer:
        for number in range(3):
            writer.add_episode(collect_forever.episode(number))
            os.pwrite(acknowledged, b"%d" % (number + 1), 0)


def main(root):
    for k in range(10**6):
        acknowledged = os.open(root / f"{k}.acknowledged", os.O_CREAT | os.O_WRONLY)
        child = os.fork()
        if child == 0:
            arm(k)
            write(root / str(k), acknowledged)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os.close(acknowledged)
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
