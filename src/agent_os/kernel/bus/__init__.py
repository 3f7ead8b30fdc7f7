"""The bus: messages between agents that do not trust each other. Decisions and rows only: nothing here waits or acts.

`broker.py` is what a back end must be able to do, `local.py` the one that lives in the kernel's own store; what both
speak of is in `message.py` and `topics.py`. `requests.py` asks and answers over any of them.
"""
