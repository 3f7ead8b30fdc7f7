"""Supervision: who is declared, started, watched, stopped and started again. `fleet` is the way in to all of it."""
