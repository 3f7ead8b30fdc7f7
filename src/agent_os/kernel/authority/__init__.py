"""Who may do what: capabilities, and later policy, labels, budgets, approvals and secrets."""
