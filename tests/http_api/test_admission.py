"""How busy calls keep the server, and whether one more fits; values are cores, seconds, calls."""

from typing import Any, cast

import pytest

from bargein.engine import protocol as p
from bargein.engine.client import EngineClient
from bargein.engine.fleet import Fleet
from bargein.http_api.admission import Admission
from bargein.http_api.config import Config
from bargein.http_api.services import Services


class Reports:
    """An engine and a front process that take so much for each call, and something for requests."""

    def __init__(self, admission: Admission, workers: int = 2, call_s: float = 0.1) -> None:
        self.admission, self.workers, self.at = admission, workers, 0.0
        self.engine_s = self.worked_s = self.live_s = self.own_s = 0.0
        if call_s:
            admission.expect(call_s)

    def run(self, seconds: int, calls: int, engine: float, own: float = 0.0, requests: float = 0.0) -> None:
        for _ in range(seconds):
            self.at += 1.0
            self.live_s += calls * engine
            self.worked_s += calls * engine + requests
            self.engine_s += calls * engine + requests
            self.own_s += calls * own
            lanes = {"stt": p.LaneLoad(0, 0, self.worked_s, 0, 0), "vad": p.LaneLoad(0, 0, 9 * self.at, 0, 0)}
            load = p.Load(0, 0, lanes, (), self.engine_s, 0, self.live_s, self.workers)
            self.admission.heard(load, self.own_s, calls, self.at)


def taken(admission: Admission, calls: int = 0, most: int = 1000) -> int:
    """How many there are once as many have dialled as are let in, all within a moment."""
    while admission.fits(calls) and calls < most:
        calls += 1
    return calls


def test_a_rush_into_an_idle_server_is_let_in_as_far_as_it_will_fit() -> None:
    admission, unlimited = Admission(0.75, cores=2), Admission(0.0, cores=2)
    for one in (admission, unlimited):
        Reports(one, call_s=0.1).run(10, calls=0, engine=0.0)
    assert taken(admission) == 12, "0.125 cores each, 1.5 of 2"
    assert taken(unlimited) == 1000


def test_the_first_call_is_always_taken() -> None:
    admission = Admission(0.75, cores=1)
    Reports(admission, call_s=5.0).run(10, calls=0, engine=0.0)
    assert taken(admission) == 1


def test_a_rush_that_turns_out_cheap_or_dear_is_learned() -> None:
    cheap, dear = Admission(0.75, cores=2), Admission(0.75, cores=2)
    Reports(cheap).run(200, calls=12, engine=0.06, own=0.01)
    assert 16 < taken(cheap, 12) < 20, "0.84 cores are taken, and the next may talk as any other"
    Reports(dear).run(200, calls=6, engine=0.2, own=0.02)
    assert taken(dear, 6) == 6
    assert taken(dear, 4) == 6, "what six took stays in mind for a while"


def test_those_who_say_nothing_take_no_room_and_leave_none_for_a_rush_of_talkers() -> None:
    admission = Admission(0.75, cores=2)
    Reports(admission).run(300, calls=40, engine=0.0, own=0.001)
    assert 50 <= taken(admission, 40) <= 52


def test_the_call_that_would_be_too_many_is_refused() -> None:
    admission = Admission(0.9, cores=2)
    Reports(admission).run(200, calls=5, engine=0.24, own=0.05)
    assert [admission.fits(n) for n in (4, 5, 6)] == [True, True, False]  # 1.74 and 2.03 of 1.8 cores


def test_few_calls_tell_nothing_of_many() -> None:
    admission = Admission(0.9, cores=2)
    Reports(admission).run(200, calls=1, engine=0.8)
    assert admission.fits(1) and admission.fits(6), "one of many takes less than one alone"


@pytest.mark.parametrize(("cores", "workers", "engine", "own", "most"), [
    (16, 1, 0.02, 0.01, 37),  # a GPU's one worker: 0.75 of it
    (16, 16, 0.05, 0.04, 18),  # the front process: 0.75 of one core
    (4, 4, 0.10, 0.019, 25),  # the cores
])  # fmt: skip
def test_what_is_scarcest_decides(cores: int, workers: int, engine: float, own: float, most: int) -> None:
    admission = Admission(0.75, cores=cores)
    Reports(admission, workers, call_s=0.0).run(300, calls=10, engine=engine, own=own)
    assert taken(admission, 10) == most


def test_an_engine_that_starts_beside_calls_does_not_make_them_dear() -> None:
    admission = Admission(0.75, cores=2)
    admission.expect(0.1)
    admission.expect(0.4)
    assert taken(admission) == 12


def test_requests_do_not_count_and_neither_does_a_restart() -> None:
    admission = Admission(0.9, cores=2)
    reports = Reports(admission)
    for _ in range(2):
        reports.run(100, calls=4, engine=0.3, requests=0.8)
        assert admission.fits(4), "1.5 cores are taken by calls, not 2.5"
        reports.engine_s = reports.worked_s = reports.live_s = 0.0  # a new engine counts from nothing


def test_what_calls_take_is_learned_anew() -> None:
    admission = Admission(0.9, cores=2)
    reports = Reports(admission)
    reports.run(200, calls=4, engine=0.1)
    assert admission.fits(5)
    reports.run(200, calls=4, engine=0.4)
    assert not admission.fits(4)


def test_a_busy_server_is_busy_until_it_is_calm() -> None:
    admission = Admission(0.9, cores=2)
    reports = Reports(admission)
    reports.run(20, calls=4, engine=0.3)
    assert not admission.is_busy  # 1.2 of 2 workers
    reports.run(20, calls=5, engine=0.3)
    assert admission.is_busy
    reports.run(20, calls=4, engine=0.33)
    assert admission.is_busy  # between the two
    reports.run(20, calls=4, engine=0.25, requests=1.0)
    assert not admission.is_busy  # requests give way, and do not count


def test_busy_is_said_of_the_workers_however_many_cores_there_are() -> None:
    admission = Admission(0.0, cores=16)
    Reports(admission, workers=1).run(20, calls=50, engine=0.016)
    assert admission.is_busy, "an engine on a GPU has one worker"


def test_every_session_is_told_whether_the_server_is_busy() -> None:
    class Told:
        def __init__(self) -> None:
            self.told: list[bool] = []

        def told_load(self, is_busy: bool) -> None:
            self.told.append(is_busy)

    engine, runner = EngineClient(), Told()
    services = Services(Config(), Fleet([engine]))
    with services.session(cast(Any, runner)):
        for seconds in (0.0, 1e6):  # of one worker, within moments
            engine.receive(p.Load(0, 0, {}, (), 0.0, 0, seconds))
    engine.receive(p.Load(0, 0, {}, (), 0.0, 0, 2e6))
    assert runner.told == [False, True]
