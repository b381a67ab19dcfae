"""What the events become: files, metrics, charts. Listeners only; nothing here can change a call."""
