"""Numbered migrations, applied in order and never changed once released."""
