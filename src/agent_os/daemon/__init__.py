"""The composition root and the kernel's process: `python -m agent_os.daemon`. Importing this loads nothing."""
