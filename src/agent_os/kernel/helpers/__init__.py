"""Ring 3 helpers as the kernel sees them. `link` is where to begin reading."""
