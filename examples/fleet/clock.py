"""A resident service: says that it is there, then the time."""

import time

print("clock: ready", flush=True)
while True:
    print(time.strftime("clock: %H:%M:%S"), flush=True)
    time.sleep(1)
