"""Policy: what holders of capabilities may do here. Files in, verdicts out; pure but for reading the files."""
