"""A Vertex AI on this machine: custom jobs over its REST API, really run, their logs and the metadata that they may ask for.

From the inside out: `fields`, `bodies`, `machines` and `rules` say what may be asked for, `filters` and `listing` what is
shown, `lifecycle` what becomes of a job and when: all of them are pure. `tables` and `entries` store, `runner` runs the
containers, `jobs` puts these together; `metadata`, `admin`, `faults` and `app` answer requests.
"""
