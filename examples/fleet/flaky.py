"""Fails whenever it is started, so that its supervisor gives it up after as many restarts as its manifest allows."""

import sys
import time

time.sleep(0.2)
sys.exit("flaky: I never work")
