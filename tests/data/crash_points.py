"""Runs as a subprocess: kill a writer at each of its file operations in turn.

For k = 0, 1, 2, ... a fork writes two episodes and closes, and sends itself SIGKILL at its k-th file operation:
just before an open, fsync, rename, truncate, unlink or mkdir, or with half of a write on the disk. The k-th folder
is left as found; the number of durable episodes that had been announced is in ``FOLDER/k.acknowledged``. Stops at
the first k that nobody reaches.

usage: python crash_points.py FOLDER
"""

import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import collect_forever


class TearingFile:
    """A file whose write may be cut in half by a kill."""

    def __init__(self, file, strike):
        self.file, self.strike = file, strike

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, content):
        half = len(content) // 2
        self.file.write(content[:half])
        self.file.flush()
        self.strike()
        return half + self.file.write(content[half:])


def arm(k):
    """Make the k-th file operation from now on kill this process."""
    calls = iter(range(10**6))

    def strike():
        if next(calls) == k:
            os.kill(os.getpid(), signal.SIGKILL)

    def armed(function):
        def wrapper(*args, **kwargs):
            strike()
            return function(*args, **kwargs)

        return wrapper

    real_open = pathlib.Path.open
    # Without the wait for the disk: a kill, unlike a power cut, loses nothing that was written.
    os.fsync, os.truncate = armed(lambda _descriptor: None), armed(os.truncate)
    for name in ("replace", "unlink", "mkdir"):
        setattr(pathlib.Path, name, armed(getattr(pathlib.Path, name)))
    pathlib.Path.open = armed(lambda path, mode="r", *rest, **more: wrap(real_open(path, mode, *rest, **more), mode))

    def wrap(file, mode):
        return TearingFile(file, strike) if mode in ("wb", "ab") else file


def write(folder, acknowledged):
    with collect_forever.open_writer(folder) as writer:
        for number in range(2):
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
