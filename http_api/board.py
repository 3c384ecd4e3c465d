"""What the workers of one server count together, in memory that they share: sessions, processor time, each key's requests.

It is a file in the server's private directory, mapped by every worker. A worker writes to its own places; what has to be
right over all of them (the last free session, a key's tokens) is read and written under the file's lock, which ends with
whoever holds it. The parent clears what a worker that died has left. Nothing here knows of HTTP.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

State = Literal["starting", "listening", "ready"]
STATES: tuple[State, ...] = ("starting", "listening", "ready")
SETS, WAYS = 512, 16  # accounts: a key has a place in one set, among so many
SALT = 16
SEAT = np.dtype([("state", "<i4"), ("sessions", "<i4"), ("spent_s", "<f8")])


class Crowded(Exception):
    """There is no place for another key while so many have requests running."""


class Row:
    """A key's account, as it lies in the shared memory; only under the lock. `tokens`: requests that it may still make now;
    `at`: when that was so."""

    def __init__(self, row: Any, number: int) -> None:
        self._row, self._number = row, number

    @property
    def tokens(self) -> float:
        return float(self._row["tokens"])

    @tokens.setter
    def tokens(self, value: float) -> None:
        self._row["tokens"] = value

    @property
    def at(self) -> float:
        return float(self._row["at"])

    @at.setter
    def at(self, value: float) -> None:
        self._row["at"] = value

    @property
    def running(self) -> int:
        """Its requests in all workers."""
        return int(self._row["running"].sum())

    def begin(self) -> None:
        """One more of this worker's."""
        self._row["running"][self._number] += 1


def _layout(num: int) -> np.dtype[Any]:
    """Of the whole board. `salt`: lest somebody picks names that fall into one set; `gone_s`: what ended workers took."""
    account = [("who", "S32"), ("tokens", "<f8"), ("at", "<f8"), ("running", "<u2", (num,))]
    return np.dtype([("salt", "V16"), ("gone_s", "<f8"), ("seats", SEAT, (num,)), ("accounts", account, (SETS, WAYS))])


class Board:
    """The shared memory of `num` workers, opened; `make` makes it first."""

    def __init__(self, path: Path, num: int) -> None:
        self.num = num
        self._file = os.open(path, os.O_RDWR)
        whole = np.frombuffer(mmap.mmap(self._file, _layout(num).itemsize), _layout(num))
        self._gone_s, self._seats, self._accounts = whole["gone_s"], whole["seats"][0], whole["accounts"][0]
        self._salt = whole["salt"][0].tobytes()

    @classmethod
    def make(cls, path: Path, num: int) -> Board:
        """A board on which nothing is counted yet."""
        with path.open("xb") as file:
            file.write(os.urandom(SALT))
            file.truncate(_layout(num).itemsize)
        return cls(path, num)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone with the board. Not to be held over an await."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def state(self, number: int) -> State:
        return STATES[int(self._seats["state"][number])]

    def set_state(self, number: int, state: State) -> None:
        self._seats["state"][number] = STATES.index(state)

    def set_sessions(self, number: int, sessions: int) -> None:
        self._seats["sessions"][number] = sessions

    def set_spent(self, number: int, seconds: float) -> None:
        """Processor time of a worker."""
        self._seats["spent_s"][number] = seconds

    @property
    def sessions(self) -> int:
        """Of all workers."""
        return int(self._seats["sessions"].sum())

    @property
    def spent_s(self) -> float:
        """Processor time of all workers, those that have ended included: it never falls."""
        return float(self._seats["spent_s"].sum() + self._gone_s[0])

    def clear(self, number: int) -> None:
        """A worker has ended: nothing is left of what it counted but its time."""
        with self.locked():
            self._gone_s[0] += self._seats["spent_s"][number]
            self._seats[number] = 0
            self._accounts["running"][:, :, number] = 0

    def account(self, who: str, number: int, now: float, full: float) -> Row:
        """A key's account, under the lock; one that is new, or was forgotten, has all its tokens. Raises Crowded."""
        name = hashlib.blake2b(who.encode(), digest_size=16, salt=self._salt).hexdigest().encode()
        ways = self._accounts[int(name[:8], 16) % SETS]
        mine = np.flatnonzero(ways["who"] == name)
        if len(mine):
            return Row(ways[mine[0]], number)
        idle = np.flatnonzero(ways["running"].sum(1) == 0)
        if not len(idle):
            raise Crowded(who)
        row = ways[idle[np.argmin(ways["at"][idle])]]  # an empty one, or the one that was not used for longest
        row["who"], row["tokens"], row["at"] = name, full, now
        return Row(row, number)


class Seat:
    """A worker's place at the board. `number`: from 0; `directory`: where every worker's socket lies; `is_heir`: whether it
    takes up what earlier processes have left to do."""

    def __init__(self, board: Board, number: int, directory: Path, is_heir: bool = False) -> None:
        self.board, self.number, self.directory, self.is_heir = board, number, directory, is_heir

    @property
    def others(self) -> list[int]:
        return [n for n in range(self.board.num) if n != self.number]

    def socket(self, number: int) -> Path:
        """Where a worker listens for its siblings."""
        return self.directory / f"worker-{number}.sock"

    def set_state(self, state: State) -> None:
        self.board.set_state(self.number, state)

    def tell(self, sessions: int) -> None:
        """How many sessions this worker has now."""
        self.board.set_sessions(self.number, sessions)

    def take(self, sessions: int, most: int) -> bool:
        """Have `sessions`, one more than before, if that does not make more than `most` in all."""
        with self.board.locked():
            if self.board.sessions >= most:
                return False
            self.tell(sessions)
            return True

    def spent_s(self, own_s: float) -> float:
        """Processor time of all workers, this one's as it is told."""
        self.board.set_spent(self.number, own_s)
        return self.board.spent_s


class SharedAccounts:
    """What `gate.Gate` asks of its accounts, over all workers."""

    def __init__(self, seat: Seat) -> None:
        self._board, self._number = seat.board, seat.number

    @contextmanager
    def of(self, who: str, now: float, full: float) -> Iterator[Row]:
        """Alone with a key's account. Raises Crowded."""
        with self._board.locked():
            yield self._board.account(who, self._number, now, full)

    def leave(self, who: str) -> None:
        """One of its requests in this worker has ended."""
        with self._board.locked():
            running = self._board.account(who, self._number, 0.0, 0.0)._row["running"]
            running[self._number] = max(0, int(running[self._number]) - 1)
