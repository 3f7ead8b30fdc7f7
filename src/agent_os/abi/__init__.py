"""The contract between the rings. Imports nothing else of ours."""
