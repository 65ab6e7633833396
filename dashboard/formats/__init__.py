"""How Django writes times where it does so itself, which is in the admin (FORMAT_MODULE_PATH)."""
