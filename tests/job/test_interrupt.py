"""Interrupts while a job runs: counted, unless the process was started to ignore them."""

import os
import signal

import pytest

from hslib.job.interrupt import Interrupts


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_counted_and_not_raised() -> None:
    noted: list[int] = []
    with Interrupts(lambda: noted.append(1)) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == len(noted) == 2
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
def test_a_shells_background_job_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts(lambda: None) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.count == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_sigterm_is_an_interrupt_first_and_does_what_it_would_have_done_at_the_end() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: heeded.append(True))
    heeded: list[bool] = []
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (interrupts.count, interrupts.is_urgent, heeded) == (1, False, [])
        assert heeded == [True]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_in_flight_is_given_back_when_a_sigterm_can_wait_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not interrupts.is_urgent
            monkeypatch.setattr("hslib.job.interrupt._FINISH_S", 0.0)
            assert interrupts.is_urgent
    finally:
        signal.signal(signal.SIGTERM, before)
