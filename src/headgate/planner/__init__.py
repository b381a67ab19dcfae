"""Rehearsals in virtual time: hours of load against the real gate, in seconds, the same every time."""
