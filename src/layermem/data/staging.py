"""A folder that one process makes, whole or not at all, while the others wait for it.

Whoever makes it holds a lock, which the system takes back from a process that has ended, however
it ended; who waits looks every second. No process group takes part, so no time-out of one ends the
waiting. Locks hold between the processes of a machine, and between machines where the file system
passes them on; where it has none, several may make the same folder, and one copy stays.

It does not know: what is made.
"""

import errno
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
from typing import IO

logger = logging.getLogger(__name__)
# Seconds between two looks, and between two lines that say so.
_POLL = 1.0
_SAY = 60.0
_STAGING, _LOCK = ".staging-", ".lock-"
_HOST = socket.gethostname()
# Seconds after which a folder of another machine, in which nothing is written, is nobody's.
_QUIET = 3600.0
_TAKEN = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}


class _NoLocksError(OSError):
    """The file system or the operating system has no locks."""


@contextmanager
def alone(folder: Path, done: Callable[[], bool]) -> Iterator[bool]:
    """Wait until ``done``, or until no other process makes the folder; yield whether to make it."""
    lock, waited = folder.with_name(f"{_LOCK}{folder.name}"), 0.0
    _make(folder.parent)
    while not done():
        with _holding(lock) as held:
            if held:
                # Whoever held the lock before may have ended its work in between.
                yield not done()
                return
        if waited % _SAY < _POLL:
            logger.info(
                "waiting, for %.0f s so far: %s is made by %s", waited, folder, _holder(lock)
            )
        time.sleep(_POLL)
        waited += _POLL
    yield False


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """Yield a folder to write in, which takes the place of ``folder`` once the block ends.

    Where the block fails, or SIGTERM comes, it is deleted; what a killed process left is deleted by
    the next one that makes anything beside it. To be called by who is ``alone``.
    """
    _clear(folder)
    staging = folder.with_name(f"{_STAGING}{folder.name}-{_HOST}-{os.getpid()}")
    with _raised_on_sigterm():
        try:
            _make(staging)
            yield staging
            for path in staging.iterdir():
                _sync(path)
            _move(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def no_room(error: OSError, path: Path) -> OSError:
    """Return the error of a file that cannot be written, with what to do."""
    return OSError(
        error.errno,
        f"{error.strerror}: prepared text cannot be written; free room, or choose another folder "
        "(--data.cache, or LAYERMEM_CACHE)",
        str(path),
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_room(error, folder) from error


def _move(staging: Path, folder: Path) -> None:
    try:
        os.replace(staging, folder)
    except OSError as error:
        # Without locks somebody else may have made the same meanwhile.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise no_room(error, folder) from error


def _sync(path: Path) -> None:
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        raise no_room(error, path) from error


def _clear(folder: Path) -> None:
    """Delete what processes that have ended left: staging folders whose lock nobody holds."""
    for path in folder.parent.glob(f"{_STAGING}*"):
        name, _, process = path.name.removeprefix(_STAGING).partition("-")
        try:
            # Its own lock is held already.
            with _holding(folder.with_name(f"{_LOCK}{name}"), strict=True) as held:
                if (held or name == folder.name) and _is_left(path, process.rpartition("-")[0]):
                    shutil.rmtree(path, ignore_errors=True)
        except _NoLocksError:
            return


def _is_left(staging: Path, host: str) -> bool:
    """Return whether a folder that no lock protects is nobody's.

    Some file systems keep locks within a machine: of another one only a quiet folder is.
    """
    if host == _HOST:
        return True
    try:
        written = max(path.stat().st_mtime for path in (staging, *staging.iterdir()))
    except OSError:
        return False
    return time.time() - written > _QUIET


@contextmanager
def _holding(lock: Path, *, strict: bool = False) -> Iterator[bool]:
    """Try to hold a lock, and yield whether it is held; without locks it is, unless ``strict``."""
    file = None
    try:
        file = _take(lock)
    except _NoLocksError as error:
        if strict:
            raise
        logger.warning(
            "%s cannot be locked (%s): other processes may prepare the same text meanwhile",
            lock.parent,
            error,
        )
        yield True
        return
    if file is None:
        yield False
        return
    with file:
        try:
            yield True
        finally:
            # While it is held: nobody who opened it before will take it for the lock.
            lock.unlink(missing_ok=True)


def _take(lock: Path) -> IO[str] | None:
    """Return the lock's file, locked, or None where another process holds it."""
    try:
        import fcntl
    except ImportError as error:
        raise _NoLocksError(0, "this system has none") from error
    while True:
        try:
            file = lock.open("a", encoding="utf-8")
        except OSError as error:
            raise no_room(error, lock) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in _TAKEN:
                return None
            raise _NoLocksError(error.errno, error.strerror) from error
        if _is_at(file, lock):
            # Who waits likes to know for whom; on a full disk it need not.
            with suppress(OSError):
                os.truncate(file.fileno(), 0)
                os.write(file.fileno(), f"process {os.getpid()} on {_HOST}".encode())
            return file
        file.close()


def _is_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8") or "another process"
    except OSError:
        return "another process"


@contextmanager
def _raised_on_sigterm() -> Iterator[None]:
    """Have SIGTERM end the block as an exception does, where nobody else listens for it."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end(*_: object) -> None:
    # Once: a second one must not end the clearing away.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)
