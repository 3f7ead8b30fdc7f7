"""Many programs, one rate-limited key: who is served when, and what it costs everybody."""
