"""Runs one check in a process of its own: it ends alone, at its time limit too, and its memory is counted alone."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import torch

from worldrl.core.errors import MissingExtraError
from worldrl.core.storage.jsonfile import plain
from worldrl.recipes.gpu.checks import Check, SkippedError
from worldrl.recipes.gpu.outcome import FAILED, MEASURED, SKIPPED, Outcome, outcome_from

LONGEST = 300  # Characters of a reason


def attempt(check: Check, device: torch.device) -> Outcome:
    """Run a check in this process; whatever it raises is its outcome."""
    began = time.monotonic()

    def outcome(status: str, **found: Any) -> Outcome:
        return Outcome(check.name, status, time.monotonic() - began, check.budget_s, **found)

    try:
        return outcome(MEASURED, numbers=check.measure(device))
    except (SkippedError, MissingExtraError) as error:
        return outcome(SKIPPED, reason=one_line(error))
    except torch.OutOfMemoryError:
        return outcome(FAILED, reason="out of memory")
    except Exception as error:
        return outcome(FAILED, reason=f"{type(error).__name__}: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """First line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:LONGEST]


def _serve(sender: Connection, check: Check, device: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    found = attempt(check, torch.device(device))
    sender.send_bytes(json.dumps(plain(asdict(found), where=check.name, nonfinite="null")).encode())


def run_apart(check: Check, device: torch.device, limit_s: float) -> Outcome:
    """Run a check in a process of its own, for ``limit_s`` seconds at most.

    Processes are forked from a server that has imported everything and touched no device.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, check, str(device)))
    began = time.monotonic()
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            return _failed(check, began, f"ran past its limit of {limit_s:.0f} s")
        return outcome_from(json.loads(receiver.recv_bytes()))
    except EOFError:
        process.join()
        return _failed(check, began, f"its process died with exit code {process.exitcode} (-9: killed, perhaps memory)")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _failed(check: Check, began: float, reason: str) -> Outcome:
    return Outcome(check.name, FAILED, time.monotonic() - began, check.budget_s, reason=reason)
