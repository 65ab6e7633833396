"""Django's PostgreSQL backend, with turns for those who find the server away."""
