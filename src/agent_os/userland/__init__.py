"""What runs inside the sandbox, untrusted. Imports the abi only."""
