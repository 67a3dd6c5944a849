"""Signals as a person at a terminal has them; and no property is judged by the time that an example takes."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("lego", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lego")

for number in (signal.SIGINT, signal.SIGHUP):
    # A shell starts what it runs in the background, and nohup what it is given, with these ignored, and so would
    # every program that a test starts and then interrupts.
    if signal.getsignal(number) is signal.SIG_IGN:
        # A function of our own, so that this process still outlives the terminal, and what it starts has the default.
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else lambda *_: None)
