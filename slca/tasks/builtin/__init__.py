"""The built-in catalogue, one file a theme. Each file holds DOMAINS: domain -> entries, and LINKS."""
