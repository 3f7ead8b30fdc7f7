"""Builds Ring 3: one isolated Linux process tree per agent, by direct system calls.

Reads in this order: `launcher` (the zygote, steps L1–L10), `confine` (what each child does, steps C1–C16), `root` (its
view of files), `landlock`, `seccomp`, `limits`, `guest_init`; `spawner` is the kernel's side of the wall, `probe` finds
out what this host can do. Standard library only; imports nothing else of ours; what crosses into it is JSON.
"""
