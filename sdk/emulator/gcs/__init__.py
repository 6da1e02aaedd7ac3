"""A Google Cloud Storage on this machine: its JSON API with true preconditions, a folder on disk, and faults on request.

From the inside out: `records` and `state` are what is stored, `blobs` the bytes; `conditions`, `listing`, `multipart` and
`ranges` are pure; `buckets`, `objects`, `uploads`, `sessions`, `downloads`, `xml` and `batch` answer requests; `routes` finds
out what is asked for, `faults` what goes wrong, and `app` and `server` put them together.
"""
