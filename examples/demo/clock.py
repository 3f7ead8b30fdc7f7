"""A resident agent for `make run`: says that it is alive, and what it can see of the machine."""

import os
import time

while True:
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    print(
        f"{time.strftime('%H:%M:%S')}  clock: alive as uid {os.getuid()}, I see {len(processes)} processes", flush=True
    )
    time.sleep(5)
