"""Starts a child that writes where it is and waits for a word, and receives a signal while the child starts.

python child_script.py FOLDER SIGNAL    the child writes FOLDER/pid, waits for FOLDER/go, writes FOLDER/ended
"""

import os
import signal
import sys
import time
from pathlib import Path

from worldrl.core.training.child import start_child


def work(folder: Path) -> None:
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / "pid")
    while not (folder / "go").exists():
        time.sleep(0.02)
    (folder / "ended").touch()


if __name__ == "__main__":
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, lambda *_: os.write(1, b"interrupted\n"))
    child = start_child(work, folder)
    if number == signal.SIGINT:
        os.killpg(os.getpgrp(), number)  # at once: the child has imported nothing yet
    while child.is_alive() and not (folder / "pid").exists():
        time.sleep(0.02)
    if number == signal.SIGKILL:
        os.kill(os.getpid(), number)
    (folder / "go").touch()
    child.join()
    os.write(1, f"child's exit code {child.exitcode}\n".encode())
