"""The report page: data, its place on disk, charts, page and closing table."""
