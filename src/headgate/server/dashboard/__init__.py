"""The dashboard: pages for people, rendered here, kept fresh over one stream. A page is a file; `table` lists them."""
