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
