"""A prepared folder that one process makes, complete or not at all, while the others wait for it.

``claim_folder`` decides which process makes the folder, ``work_folder`` is where it writes:

    .lock-NAME      held by the process that makes NAME; deleted when it is done
    .parts-NAME     what is written so far; renamed to NAME once complete

A lock ends with its process, however that ends. What is done stays for the next process to go on
with it. Where the file system has no locks, several processes may make the same folder, each in a
``work_folder`` of its own, and one copy stays.
"""

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

logger = logging.getLogger(__name__)
# Seconds between two attempts to take the lock, and between two lines of the log that say so.
_POLL = 1.0
_LOG_EVERY = 60.0
PARTS, _LOCK = ".parts-", ".lock-"
HOST = socket.gethostname()
# Seconds without a new file after which a folder is abandoned: one of another machine in which
# nothing is done yet, and any other, whose tasks may wait in a queue.
_ABANDONED_AFTER, _FORGOTTEN_AFTER = 3600.0, 30 * 86400.0
# In a folder whose pieces are made by tasks that no process waits for.
SUBMITTED = "submitted"


@contextmanager
def claim_folder(folder: Path, is_complete: Callable[[], bool]) -> Iterator[bool | OSError]:
    """Wait while another process makes the folder; yield whether this process is to make it.

    Where there are no locks, others may make it meanwhile: then the error that says so is yielded,
    which counts as true.
    """
    lock, waited = folder.with_name(f"{_LOCK}{folder.name}"), 0.0
    while not is_complete():
        with write_errors(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        with _try_lock(lock) as held:
            if isinstance(held, OSError):
                logger.warning(
                    "%s cannot be locked (%s): other processes may prepare the same text meanwhile",
                    folder.parent,
                    held,
                )
            if held:
                # The process that held the lock before may have completed the folder meanwhile.
                yield False if is_complete() else held
                return
        if waited % _LOG_EVERY < _POLL:
            holder = ""
            with suppress(OSError):
                holder = lock.read_text(encoding="utf-8")
            text = "waiting, for %.0f s so far: %s is made by %s"
            logger.info(text, waited, folder, holder or "another process")
        time.sleep(_POLL)
        waited += _POLL
    yield False


def process_name() -> str:
    """Return a name that no other process has now."""
    return f"{HOST}-{os.getpid()}"


def work_path(folder: Path, owner: str = "") -> Path:
    """Return where a folder is made: by whoever holds its lock, or by its ``owner`` alone."""
    return folder.with_name("-".join(filter(None, [f"{PARTS}{folder.name}", owner])))


@contextmanager
def work_folder(folder: Path, owner: str = "") -> Iterator[None]:
    """Have a ``work_path``, in which the block makes what is missing. Where it fails for the
    text's sake, or nothing is done yet, it is deleted; so is what has an owner. SIGTERM ends the
    block as an exception does. Use it under ``claim_folder``."""
    if not owner:
        _delete_abandoned(folder)
    work = work_path(folder, owner)
    with _sigterm_as_exception():
        try:
            with write_errors(work):
                work.mkdir(parents=True, exist_ok=True)
                (work / "host").write_text(HOST, encoding="utf-8")
            yield
        except ValueError:
            # As it stands the text cannot be prepared.
            shutil.rmtree(work, ignore_errors=True)
            raise
        finally:
            if owner or not _is_worth_keeping(work):
                shutil.rmtree(work, ignore_errors=True)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Have errors of writing a file or folder say how to mend it."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: prepared text cannot be written; free room, or choose another "
            "folder (--data.cache, or LAYERMEM_CACHE)",
            str(path),
        ) from error


def _delete_abandoned(folder: Path) -> None:
    """Delete what processes that have ended left, and nobody goes on with."""
    for path in folder.parent.glob(f"{PARTS}*"):
        name = path.name.removeprefix(PARTS)
        with _try_lock(folder.with_name(f"{_LOCK}{name}")) as held:
            # The lock of ``folder`` itself is held by this process, which goes on with it.
            if held is True and _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_worth_keeping(work: Path) -> bool:
    """Return whether a piece is done, or tasks of which no process waits for make them."""
    return any(work.glob("[0-9]*.json")) or (work / SUBMITTED).exists()


def _is_abandoned(work: Path) -> bool:
    """Return whether nobody will go on with a folder whose lock is free. That of another machine
    must also be old, since some file systems keep locks within a machine."""
    try:
        quiet = time.time() - max(path.stat().st_mtime for path in (work, *work.iterdir()))
        if _is_worth_keeping(work):
            return quiet > _FORGOTTEN_AFTER
        same_host = (work / "host").read_text(encoding="utf-8") == HOST
    except FileNotFoundError:
        same_host = False
    except OSError:
        return False
    return same_host or quiet > _ABANDONED_AFTER


@contextmanager
def _try_lock(path: Path) -> Iterator[bool | OSError]:
    """Yield whether a lock could be taken; where there are no locks, the error that says so."""
    # A soft lock, which FileLock would fall back to, would outlive a killed process.
    lock = FileLock(path, fallback_to_soft=False)
    taken = _acquire(lock, path)
    try:
        yield taken
    finally:
        if taken is True:
            # Deleted while it is held: FileLock takes no file that was deleted since it was opened.
            # Windows deletes no file that is open; there the lock file stays.
            with suppress(PermissionError):
                path.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: BaseFileLock, path: Path) -> bool | OSError:
    while True:
        with write_errors(path):
            path.touch()
        try:
            lock.acquire(blocking=False)
        except Timeout:
            if path.exists():
                return False
            # Its holder deleted the file before this process could lock it: the lock is free.
            continue
        except OSError as error:
            return error
        # For the log of those who wait; on a full disk they do without.
        with suppress(OSError):
            path.write_text(f"process {os.getpid()} on {HOST}", encoding="utf-8")
        return True


@contextmanager
def _sigterm_as_exception() -> Iterator[None]:
    """Have SIGTERM end the block as an exception does, unless it has a handler already."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_once(*_: object) -> None:
    # A second SIGTERM must not interrupt the clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)
