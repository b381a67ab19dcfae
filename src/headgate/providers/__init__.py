"""One package per provider: its wire format on one side, our messages and `ProviderFailure` on the other."""
