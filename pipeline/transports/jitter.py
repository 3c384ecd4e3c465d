"""The jitter buffer: RTP packets in any order, at any time, to an unbroken stream of audio pieces.

Pure: time is an argument. The listener is a machine, so nothing is held back for evenness: a packet that is next in
line goes straight through. What waits is a hole. It is given until its packet would have arrived on time plus the
target, which follows the jitter measured (20 to 120 ms) and shrinks again; then it is filled, from the redundancy in
the next packet, by concealment, or with silence. So the stream's length always is the time that has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

PER_MS = 48  # RTP ticks
STEP = 20 * PER_MS
MIN_TARGET_MS, START_TARGET_MS, MAX_TARGET_MS = 20.0, 60.0, 120.0
CONCEAL_MS = 100  # a longer hole goes on as silence
JUMP = 5000 * PER_MS  # timestamps further off than this are a new stream
STALL = 3 * STEP  # a stream that goes on where it stopped, this far behind: better late than lost
LATE_RUN = 5  # so many packets in a row behind time: the path has become slower
BASE_WINDOW_MS = 5000.0
MAX_HELD = 256

_BUCKET_MS = 5.0
_BUCKETS = 41
_FORGET = 0.99
_QUANTILE = 0.96


@dataclass(frozen=True, slots=True)
class Coded:
    """A packet as it came."""

    payload: bytes
    duration: int


@dataclass(frozen=True, slots=True)
class Recover:
    """A lost packet, the redundancy for which is in the following packet's payload."""

    following: bytes
    duration: int


@dataclass(frozen=True, slots=True)
class Conceal:
    duration: int


@dataclass(frozen=True, slots=True)
class Silence:
    duration: int


Piece = Coded | Recover | Conceal | Silence


@dataclass(frozen=True, slots=True)
class _Held:
    seq: int
    payload: bytes
    duration: int


class JitterBuffer:
    """`push` packets, `pop` pieces; call `pop` again at `deadline` if nothing is pushed before. Durations and
    timestamps are 48 kHz samples, times are milliseconds of one monotonic clock."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}  # by extended timestamp
        self._next: int | None = None  # timestamp of the next sample to leave
        self._extended = 0  # the newest timestamp, unwrapped
        self._last_seq = -1  # sequence number of the last packet that left
        self._max_seq = -1
        self._base = (float("inf"), float("inf"))  # least transit of the window before and of this one
        self._base_since = 0.0
        self._late = [0.0] * _BUCKETS
        self._late[int(START_TARGET_MS / _BUCKET_MS) - 2] = 1.0
        self._late_run = 0
        self._filled = 0  # how much of the current hole has been filled
        self._step = STEP  # length of the last packet
        self.target_ms = START_TARGET_MS
        self.num_lost = self.num_late = self.num_recovered = 0

    # --- in ---

    def push(self, seq: int, timestamp: int, payload: bytes, duration: int, now: float) -> None:
        """A packet arrived at `now`. `seq` is 16 bits and `timestamp` 32 bits wide, as on the wire."""
        ts = self._unwrap(timestamp)
        sent_on = self._max_seq >= 0 and seq == (self._max_seq + 1) & 0xFFFF
        if self._next is None or abs(ts - self._next) > JUMP or (sent_on and self._next - ts >= STALL):
            self._restart(ts, now)
        assert self._next is not None
        if self._max_seq < 0 or (seq - self._max_seq) & 0xFFFF < 0x8000:
            self._max_seq = seq
        self._measure(now - ts / PER_MS, now)
        if ts < self._next:
            self.num_late += 1
            self._late_run += 1
            if self._late_run < LATE_RUN:
                return
            self._restart(ts, now)
        self._late_run = 0
        if len(self._held) < MAX_HELD:
            self._held.setdefault(ts, _Held(seq, payload, duration))

    def _unwrap(self, timestamp: int) -> int:
        ahead = (timestamp - self._extended) & 0xFFFFFFFF
        ts = self._extended + (ahead if ahead < 0x80000000 else ahead - 0x100000000)
        self._extended = max(self._extended, ts) if self._next is not None and abs(ts - self._extended) < JUMP else ts
        return ts

    def _restart(self, ts: int, now: float) -> None:
        """A new stream, or the same one on a slower path: time goes on from here."""
        self._held.clear()
        self._next, self._last_seq, self._filled, self._late_run = ts, -1, 0, 0
        self._extended = ts
        transit = now - ts / PER_MS
        self._base, self._base_since = (transit, transit), now

    def _measure(self, transit: float, now: float) -> None:
        """Follow the fastest recent transit, and how much later than it packets come."""
        if now - self._base_since > BASE_WINDOW_MS:
            self._base, self._base_since = (self._base[1], transit), now
        else:
            self._base = (self._base[0], min(self._base[1], transit))
        late = transit - min(self._base)
        bucket = min(int(late / _BUCKET_MS), _BUCKETS - 1)
        self._late = [w * _FORGET for w in self._late]
        self._late[bucket] += 1 - _FORGET
        total, need = 0.0, _QUANTILE * sum(self._late)
        for at, weight in enumerate(self._late):
            total += weight
            if total >= need:
                wanted = (at + 1) * _BUCKET_MS + _BUCKET_MS
                self.target_ms = min(max(wanted, MIN_TARGET_MS), MAX_TARGET_MS)
                break

    # --- out ---

    @property
    def started(self) -> bool:
        return self._next is not None

    def deadline(self) -> float | None:
        """When the next sample is overdue; None before the first packet."""
        if self._next is None:
            return None
        return min(self._base) + self._next / PER_MS + self.target_ms

    def pop(self, now: float) -> list[Piece]:
        """Everything that can leave by now, in order."""
        out: list[Piece] = []
        while self._next is not None:
            packet = self._held.pop(self._next, None)
            if packet is not None:
                out.append(Coded(packet.payload, packet.duration))
                self._next += packet.duration
                self._last_seq, self._filled, self._step = packet.seq, 0, packet.duration
                continue
            ahead = min(self._held, default=None)
            if ahead is not None and ahead < self._next:  # overlaps what has left
                del self._held[ahead]
                continue
            deadline = self.deadline()
            assert deadline is not None
            if ahead is not None:
                gap = ahead - self._next
                following = self._held[ahead]
                if following.seq == (self._last_seq + 1) & 0xFFFF:  # nothing was lost: the sender was silent
                    out.append(self._fill(Silence(gap)))
                    continue
                if now < deadline:
                    break
                out.append(self._lost(gap, following))
            elif now >= deadline:
                out.append(self._lost(self._step, None))
            else:
                break
        return out

    def _lost(self, gap: int, following: _Held | None) -> Piece:
        """Fill the beginning of a hole of `gap`; `following` is the packet after it."""
        self.num_lost += 1
        if following is not None and gap == following.duration:
            self.num_recovered += 1
            return self._fill(Recover(following.payload, gap))
        step = min(gap, self._step)
        if self._filled >= CONCEAL_MS * PER_MS or step % 120:
            return self._fill(Silence(step))
        return self._fill(Conceal(step))

    def _fill(self, piece: Conceal | Recover | Silence) -> Piece:
        assert self._next is not None
        self._next += piece.duration
        self._filled += piece.duration
        return piece
