"""What `headgate doctor` looks at. Decisions are values: what was seen goes in, a finding comes out."""
