"""Ring 0: what decides, records and then acts."""
